#include "kernels/prefill_attention/prefill_attention_sm90.cuh"

namespace baton::kernels {

template KernelStatus PrefillAttentionSm90OfDim<256>(const Sm90Params& params, CudaStream stream,
                                                     LaunchOrder order);

}  // namespace baton::kernels
