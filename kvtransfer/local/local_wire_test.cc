// The local wire passes the suite of all wires.
#include "kvtransfer/local/local_wire.h"

#include "kvtransfer/wire_conformance.h"

namespace baton::kvtransfer {

INSTANTIATE_TEST_SUITE_P(Local, WireConformanceTest,
                         ::testing::Values(WireFactory{"local", [] { return MakeLocalWire(); }}),
                         WireFactoryName);

}  // namespace baton::kvtransfer
