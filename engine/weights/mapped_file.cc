#include "engine/weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

struct OpenFile {
  int fd = -1;
  size_t size = 0;
};

absl::Status SystemError(const std::string& path, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", what, ": ", std::strerror(errno)));
}

// O_NONBLOCK: opening a FIFO or a device must not hang; it has no effect on regular files.
absl::StatusOr<OpenFile> OpenRegularFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
    return SystemError(path, "cannot open");
  }
  auto closer = absl::MakeCleanup([fd] { close(fd); });
  struct stat info{};
  if (fstat(fd, &info) != 0) return SystemError(path, "cannot stat");
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": not a regular file"));
  }
  std::move(closer).Cancel();
  return OpenFile{fd, static_cast<size_t>(info.st_size)};
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  absl::StatusOr<OpenFile> file = OpenRegularFile(path);
  if (!file.ok()) return absl::FailedPreconditionError(file.status().message());
  auto closer = absl::MakeCleanup([fd = file->fd] { close(fd); });
  if (file->size == 0) return MappedFile({});
  void* data = mmap(nullptr, file->size, PROT_READ, MAP_PRIVATE, file->fd, 0);
  if (data == MAP_FAILED) return SystemError(path, "cannot map");
  return MappedFile(absl::MakeConstSpan(static_cast<const std::byte*>(data), file->size));
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t size_max) {
  ASSIGN_OR_RETURN(const OpenFile file, OpenRegularFile(path));
  auto closer = absl::MakeCleanup([fd = file.fd] { close(fd); });
  if (file.size > size_max) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": ", file.size, " bytes, more than the limit of ", size_max));
  }
  std::string text(file.size, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = read(file.fd, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError(path, "cannot read");
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

}  // namespace baton
