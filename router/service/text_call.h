// Tokenize and Detokenize calls: parsed and validated on the gRPC thread, done on the text pool.
#ifndef BATON_ROUTER_SERVICE_TEXT_CALL_H_
#define BATON_ROUTER_SERVICE_TEXT_CALL_H_

#include <grpcpp/grpcpp.h>

#include "router/service/service_context.h"

namespace baton::router {

// Each returns a reactor that owns itself. `response` is gRPC's.
grpc::ServerUnaryReactor* StartTokenize(const ServiceContext* service,
                                        const grpc::ByteBuffer& request,
                                        grpc::ByteBuffer* response);
grpc::ServerUnaryReactor* StartDetokenize(const ServiceContext* service,
                                          const grpc::ByteBuffer& request,
                                          grpc::ByteBuffer* response);
grpc::ServerUnaryReactor* StartListModels(const ServiceContext* service,
                                          grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer& request,
                                          grpc::ByteBuffer* response);

}  // namespace baton::router

#endif  // BATON_ROUTER_SERVICE_TEXT_CALL_H_
