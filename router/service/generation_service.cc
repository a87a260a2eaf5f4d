#include "router/service/generation_service.h"

#include "router/service/stream_call.h"
#include "router/service/text_call.h"
#include "router/service/unary_call.h"

namespace baton::router {

grpc::ServerUnaryReactor* GenerationService::Generate(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  return UnaryCall::Start(context_, context, *request, response);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationService::StreamGenerate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return StreamCall::Start(context_, context, *request);
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  return StartTokenize(context_, *request, response);
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  return StartDetokenize(context_, *request, response);
}

grpc::ServerUnaryReactor* GenerationService::ListModels(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  return StartListModels(context_, context, *request, response);
}

}  // namespace baton::router
