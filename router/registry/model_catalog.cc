#include "router/registry/model_catalog.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/error_details.h"

namespace baton::router {
namespace {

// Names in an error, at most: the message must stay small.
constexpr size_t kNamesListedMax = 20;

}  // namespace

void ModelCatalog::Publish(ServedModel model) {
  auto shared = std::make_shared<const ServedModel>(std::move(model));
  MutexLock lock(mutex_);
  models_[shared->name] = std::move(shared);
}

absl::StatusOr<std::shared_ptr<const ServedModel>> ModelCatalog::Find(
    absl::string_view name) const {
  MutexLock lock(mutex_);
  if (name.empty()) {
    if (models_.empty()) return absl::UnavailableError("no model is served yet");
    if (models_.size() == 1) return models_.begin()->second;
    return rpc::InvalidFieldError(
        "model", absl::StrCat("must be set: ", models_.size(), " models are served"));
  }
  const auto it = models_.find(std::string(name));
  if (it != models_.end()) return it->second;
  std::string served;
  size_t listed = 0;
  for (const auto& [known, model] : models_) {
    if (listed == kNamesListedMax) {
      absl::StrAppend(&served, " and ", models_.size() - listed, " more");
      break;
    }
    absl::StrAppend(&served, listed++ == 0 ? "" : ", ", rpc::QuoteForError(known));
  }
  return absl::NotFoundError(
      absl::StrCat("model ", rpc::QuoteForError(name),
                   " is not served; served: ", served.empty() ? "none" : served));
}

std::vector<std::shared_ptr<const ServedModel>> ModelCatalog::List() const {
  std::vector<std::shared_ptr<const ServedModel>> out;
  MutexLock lock(mutex_);
  out.reserve(models_.size());
  for (const auto& [name, model] : models_) out.push_back(model);
  return out;
}

absl::Status CheckReady(const ServedModel& model) {
  if (model.ready) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("model ", rpc::QuoteForError(model.name),
                                             " is not ready: ", model.unready_reason));
}

}  // namespace baton::router
