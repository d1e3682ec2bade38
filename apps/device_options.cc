#include "apps/device_options.h"

#include "apps/weight_cache.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/dummy_formats.h"
#include "engine/demo_models.h"
#include "quant/panels.h"
#include "tensor/cuda/device_memory.h"

namespace braid {

void require_cuda() {
  if (!cuda::built_in()) {
    throw Error(
        "--device cuda: this build has no CUDA backend; build the preset 'cuda' or use --device "
        "cpu");
  }
  if (cuda::num_devices() == 0) {
    throw Error("--device cuda: there is no CUDA device here (or no driver); use --device cpu");
  }
}

void DeviceOptions::add_model(CLI::App& command, const std::string& default_model) {
  model = default_model;
  auto* positional = command.add_option(
      "MODEL", model, "Hugging Face folder, .gguf file, or demo:NAME (a bundled model)");
  positional->option_text(default_model.empty() ? " " : "(default: " + default_model + ")");
  positional->excludes(
      command.add_option("-m,--model", model, "The same as MODEL")->option_text("MODEL"));
}

void DeviceOptions::add_to(CLI::App& command) {
  command.add_option("--device", device, "Where to compute")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("-t,--threads", num_threads, "CPU threads (0: one per processor)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command.add_flag("--pin-threads", pin_threads, "Bind each thread to a processor");
  command.add_option("--isa", isa, "Force the CPU kernels of an instruction set")
      ->check(CLI::IsMember({"portable", "avx2", "avx512"}));
  command
      .add_option(
          "--compute", compute,
          "Rounding of matrix inputs: f32 (none), bf16, int8 (for block-quantised weights; on "
          "a CUDA device for w8c), auto (int8 for block-quantised weights, f32 for others; on a "
          "CUDA device bf16)")
      ->check(CLI::IsMember({"auto", "f32", "bf16", "int8"}))
      ->capture_default_str();
  command.add_flag("--deterministic", deterministic,
                   "With --device cuda: the same bits whatever shares a step with a sequence, at "
                   "some price (on the CPU it is always so)");
  command
      .add_option("--kv,--kv-dtype", kv_dtype,
                  "Storage of keys and values: f32, bf16, int8 (with the static scales of the "
                  "checkpoint, if it has some, else a scale per token and head), int8-static (it "
                  "must have some), int8-dynamic (a scale per token and head in any case), auto "
                  "(int8 if the checkpoint's kv_cache_scheme says so; else f32 with --compute f32, "
                  "bf16 otherwise)")
      ->check(CLI::IsMember(kv_choices()))
      ->capture_default_str();
  command
      .add_option("--load-format", load_format,
                  "auto, or dummy: random weights of the config's shapes, for speed measurements")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  command
      .add_option("--weights,--dummy-format", dummy_format,
                  "Storage of dummy weights: a format (bf16, q4_0, w4g128, w8c, ...), or w4a16 or "
                  "w8a8, which leave embeddings, head and routers in bf16")
      ->capture_default_str();
  command
      .add_option("--dummy-layout", dummy_layout,
                  "Order of dummy weights in block formats: panels (as packed models have it) or "
                  "rows (as files have it)")
      ->check(CLI::IsMember({"panels", "rows"}))
      ->capture_default_str();
  command
      .add_option("--weight-cache", weight_cache,
                  "Where packed copies of models in block formats are kept, for fast later runs: "
                  "auto (the user's cache folder, if there is room), a folder, or off")
      ->envname("BRAID_WEIGHT_CACHE")
      ->capture_default_str();
  command.add_option("--dummy-seed", dummy_seed, "Seed of dummy weights")->capture_default_str();
}

void DeviceOptions::apply() const {
  if (model.empty()) throw UsageError("MODEL is required (a folder, a .gguf file, or demo:NAME)");
  if (device == "cuda") require_cuda();
  if (!isa.empty()) force_isa(parse_isa(isa));
}

LoadedModel DeviceOptions::load(bool with_tokenizer, bool read_ahead,
                                const std::vector<int64_t>& on_host) const {
  LoadOptions options;
  options.offloaded = on_host;
  options.read_ahead = read_ahead;
  options.with_tokenizer = with_tokenizer;
  options.dummy_weights = load_format == "dummy";
  options.dummy_format = dummy_storage();
  options.dummy_seed = dummy_seed;
  if (device == "cuda") options.device = {DeviceKind::kCuda, 0};
  if (options.dummy_weights || !read_ahead) return LoadedModel::load(model, options);
  options.origin = resolve_model(model).string();
  const PackLayout layout = device == "cpu" ? PackLayout::kPanels : PackLayout::kRows;
  LoadedModel loaded =
      LoadedModel::load(cached_model(model, weight_cache, num_threads, layout), options);
  const KvStorage storage = kv(loaded);
  if (kv_dtype == "auto" && storage.dtype == DType::kI8) {
    spdlog::info("{}: keys and values are stored as {}, as its kv_cache_scheme says (--kv)",
                 loaded.origin(), storage.name);
  }
  return loaded;
}

std::string DeviceOptions::dummy_storage() const {
  if (device != "cpu" || dummy_layout != "panels") return dummy_format;
  const std::string panels = fmt::format("{}x{}", dummy_format, kPanelRows);
  return DummyFormats::find(panels) ? panels : dummy_format;
}

ActivationPrecision DeviceOptions::precision() const {
  if (compute == "f32") return ActivationPrecision::kF32;
  if (compute == "bf16" || (compute == "auto" && device == "cuda")) {
    return ActivationPrecision::kBF16;
  }
  return ActivationPrecision::kInt8;
}

const std::vector<std::string>& kv_choices() {
  static const std::vector<std::string> kChoices = {"auto", "f32",         "bf16",
                                                    "int8", "int8-static", "int8-dynamic"};
  return kChoices;
}

KvStorage DeviceOptions::kv(const LoadedModel& loaded) const {
  if (kv_dtype == "f32") return {DType::kF32, false, "f32"};
  if (kv_dtype == "bf16") return {DType::kBF16, false, "bf16"};
  const bool has_scales = has_kv_scales(loaded.model(), loaded.origin());
  if (kv_dtype == "int8-static" && !has_scales) {
    throw Error(
        "--kv int8-static: {} has no scales of its keys and values (quantization_config with a "
        "static kv_cache_scheme of int8); use int8-dynamic",
        loaded.origin());
  }
  const KvCacheScheme::Kind kind = loaded.files().kv_cache().kind;
  const bool says_int8 = kind == KvCacheScheme::Kind::kDynamicInt8 ||
                         (kind == KvCacheScheme::Kind::kStaticInt8 && has_scales);
  if (kv_dtype == "auto" && !says_int8) {
    return compute == "f32" ? KvStorage{DType::kF32, false, "f32"}
                            : KvStorage{DType::kBF16, false, "bf16"};
  }
  if (kv_dtype == "int8-dynamic") return {DType::kI8, true, "i8"};
  return {DType::kI8, false, has_scales ? "i8 with static scales" : "i8"};
}

}  // namespace braid
