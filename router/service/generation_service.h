// baton.v1.GenerationService over the callback API. Methods are raw: requests are parsed by the
// calls themselves (generate_call.h says why). Thread-safe.
#ifndef BATON_ROUTER_SERVICE_GENERATION_SERVICE_H_
#define BATON_ROUTER_SERVICE_GENERATION_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include "baton/v1/generation.grpc.pb.h"
#include "router/service/service_context.h"

namespace baton::router {

using RawGenerationService = v1::GenerationService::WithRawCallbackMethod_Generate<
    v1::GenerationService::WithRawCallbackMethod_StreamGenerate<
        v1::GenerationService::WithRawCallbackMethod_Tokenize<
            v1::GenerationService::WithRawCallbackMethod_Detokenize<
                v1::GenerationService::WithRawCallbackMethod_ListModels<
                    v1::GenerationService::Service>>>>>;

class GenerationService final : public RawGenerationService {
 public:
  // `context` must outlive all calls.
  explicit GenerationService(const ServiceContext* context) : context_(context) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamGenerate(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;

 private:
  const ServiceContext* const context_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SERVICE_GENERATION_SERVICE_H_
