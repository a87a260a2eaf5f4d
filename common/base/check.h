// CHECK: a programmer's error ends the process with file, line, condition and values. Never used
// for input, memory, network or files. DCHECK is the same in debug and sanitizer builds only.
#ifndef BATON_COMMON_BASE_CHECK_H_
#define BATON_COMMON_BASE_CHECK_H_

#include <sstream>

namespace baton::internal {

// Prints to stderr and aborts in its destructor; collects what is streamed into it.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

}  // namespace baton::internal

#define CHECK(condition)      \
  if (condition) [[likely]] { \
  } else                      \
    ::baton::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#define BATON_CHECK_OP(a, op, b) CHECK((a)op(b)) << "(" << (a) << " vs " << (b) << ") "
#define CHECK_EQ(a, b) BATON_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) BATON_CHECK_OP(a, !=, b)
#define CHECK_LT(a, b) BATON_CHECK_OP(a, <, b)
#define CHECK_LE(a, b) BATON_CHECK_OP(a, <=, b)
#define CHECK_GT(a, b) BATON_CHECK_OP(a, >, b)
#define CHECK_GE(a, b) BATON_CHECK_OP(a, >=, b)

#ifdef NDEBUG
#define DCHECK(condition) CHECK(true || (condition))
#else
#define DCHECK(condition) CHECK(condition)
#endif

#endif  // BATON_COMMON_BASE_CHECK_H_
