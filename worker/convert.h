// Translates between proto/baton/worker/v1/session.proto and the plain structs of
// worker/messages.h. Thread-safe (no state).
#ifndef BATON_WORKER_CONVERT_H_
#define BATON_WORKER_CONVERT_H_

#include "absl/status/statusor.h"
#include "baton/worker/v1/session.pb.h"
#include "common/base/clock.h"
#include "worker/messages.h"

namespace baton::worker {

// ERRORS: InvalidArgument naming the field: unknown mode, border beyond the tokens, numbers out of
// range, missing ids. The router has validated what clients sent; this guards the worker against a
// router of another version.
absl::StatusOr<StartSequence> FromProto(const v1::StartSequence& proto, RouterSessionId session,
                                        TimePoint now);

v1::StepOutput ToProto(const StepOutput& output);
v1::SequenceEnd ToProto(const SequenceEnd& end);
v1::PairFailed ToProto(const PairFailed& failure);
v1::ModelLoad ToProto(const LoopLoad& load);

}  // namespace baton::worker

#endif  // BATON_WORKER_CONVERT_H_
