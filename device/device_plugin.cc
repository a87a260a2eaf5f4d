#include "device/device_plugin.h"

#include <dlfcn.h>

#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "device/abi_id.h"

namespace baton {
namespace {

std::string DlError() {
  const char* error = dlerror();
  return error != nullptr ? error : "unknown error";
}

}  // namespace

const char* DevicePluginAbiId() { return kAbiId; }

absl::StatusOr<const PluginHeader*> LoadPluginAt(const std::string& path, const char* entry,
                                                 uint32_t magic) {
  // RTLD_LOCAL: what the plug-in brings along must not be found by anybody else.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::FailedPreconditionError(DlError());
  void* symbol = dlsym(library, entry);
  if (symbol == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is no such plug-in: it has no ", entry));
  }
  const auto function = reinterpret_cast<const PluginHeader* (*)()>(symbol);
  const PluginHeader* plugin = function();
  if (plugin == nullptr || plugin->magic != magic) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is no such plug-in"));
  }
  if (std::strcmp(plugin->abi_id, kAbiId) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, " comes from another build (",
                                                      plugin->abi_id, ", this program is ", kAbiId,
                                                      "): install both from the same one"));
  }
  return plugin;
}

absl::StatusOr<const PluginHeader*> LoadPlugin(const std::string& file, const char* entry,
                                               uint32_t magic) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError(absl::StrCat("/proc/self/exe: ", error.message()));
  const std::filesystem::path here = program.parent_path();
  const std::filesystem::path folders[] = {here, here.parent_path() / "lib" / "baton"};
  for (const std::filesystem::path& folder : folders) {
    const std::filesystem::path path = folder / file;
    if (std::filesystem::exists(path, error)) return LoadPluginAt(path.string(), entry, magic);
  }
  return absl::NotFoundError(
      absl::StrCat("no plug-in ", file, " in ", folders[0].string(), " or ", folders[1].string()));
}

absl::StatusOr<const DevicePlugin*> LoadDevicePluginAt(const std::string& path) {
  ASSIGN_OR_RETURN(const PluginHeader* plugin,
                   LoadPluginAt(path, kDevicePluginEntry, kDevicePluginMagic));
  return reinterpret_cast<const DevicePlugin*>(plugin);
}

absl::StatusOr<const DevicePlugin*> LoadDevicePlugin(const std::string& file) {
  ASSIGN_OR_RETURN(const PluginHeader* plugin,
                   LoadPlugin(file, kDevicePluginEntry, kDevicePluginMagic));
  return reinterpret_cast<const DevicePlugin*>(plugin);
}

}  // namespace baton
