#include "router/null_metrics.h"

namespace baton::router {

RouterMetrics* NullRouterMetrics() {
  static NullMetrics metrics;
  return &metrics;
}

}  // namespace baton::router
