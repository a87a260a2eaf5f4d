// Histogram buckets, shared so that the same quantity can be compared between processes. Upper
// bounds, ascending; "le" is inclusive. Steps stay below a factor of 2.5, so that an interpolated
// quantile is within about a factor of 2 of the truth. Objectives that alerts use (100 ms, 250 ms,
// 1 s, 10 s ...) are exact bounds.
#ifndef BATON_COMMON_METRICS_BUCKETS_H_
#define BATON_COMMON_METRICS_BUCKETS_H_

namespace baton::metrics {

// Time to first token and time in the queue: from a small model on a GPU to a prompt of a million
// tokens behind a queue.
inline constexpr double kFirstTokenSecondsBuckets[] = {.001, .0025, .005, .01, .02, .04, .06, .08,
                                                       .1,   .25,   .5,   .75, 1,   2.5, 5,   7.5,
                                                       10,   20,    40,   80,  160, 320, 640};

// Gap between successive tokens of one sequence.
inline constexpr double kInterTokenSecondsBuckets[] = {
    .0005, .001, .0025, .005, .0075, .01, .015, .02, .025, .04, .05, .075,
    .1,    .15,  .2,    .3,   .4,    .5,  .75,  1,   2.5,  5,   10,  20};

// A whole request; the longest generations take tens of minutes.
inline constexpr double kRequestSecondsBuckets[] = {.005, .01, .025, .05, .1,  .25, .5,   1,
                                                    1.5,  2.5, 5,    7.5, 10,  15,  20,   30,
                                                    45,   60,  90,   120, 240, 600, 1200, 2400};

// One hand-over of KV: tens of microseconds over NVLink to seconds over a slow network.
inline constexpr double kTransferSecondsBuckets[] = {
    .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20};

// Tokens per request, to the longest contexts there are.
inline constexpr double kTokenCountBuckets[] = {1,     2,     5,      10,     20,     50,     100,
                                                200,   500,   1000,   2000,   4000,   8000,   16000,
                                                32000, 64000, 128000, 256000, 512000, 1048576};

}  // namespace baton::metrics

#endif  // BATON_COMMON_METRICS_BUCKETS_H_
