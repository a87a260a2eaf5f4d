// Programmatic dependent launch (griddepcontrol, sm_90): a kernel launched with
// LaunchOrder::kOverlapped may start while the one before it in the stream still runs.
#ifndef BATON_KERNELS_PTX_GRID_DEPENDENCY_CUH_
#define BATON_KERNELS_PTX_GRID_DEPENDENCY_CUH_

namespace baton::kernels::ptx {

// Returns when the kernel before has ended and what it wrote is visible. Everything up to this call
// may touch only what no earlier kernel of the stream writes (weights, step metadata). Does nothing
// in a launch that is not overlapped.
__device__ __forceinline__ void DependencyWait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Lets the next kernel start once every block of this one has called it or ended. It publishes
// nothing: the next kernel still waits for the end of this one before it reads.
__device__ __forceinline__ void DependencyTrigger() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace baton::kernels::ptx

#endif  // BATON_KERNELS_PTX_GRID_DEPENDENCY_CUH_
