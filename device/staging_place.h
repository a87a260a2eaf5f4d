// Where staging slots of KV lie.
#ifndef BATON_DEVICE_STAGING_PLACE_H_
#define BATON_DEVICE_STAGING_PLACE_H_

namespace baton {

enum class StagingPlace {
  kHost,    // Memory of the host, page-locked where that makes copies faster.
  kDevice,  // Memory of the device that holds the KV pool.
};

}  // namespace baton

#endif  // BATON_DEVICE_STAGING_PLACE_H_
