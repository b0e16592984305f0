// `shortlist info`: what an index file or a file of vectors holds.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "command.hpp"
#include "shortlist/shortlist.hpp"
#include "terminal.hpp"

namespace shortlist::program {
namespace {

using json = nlohmann::ordered_json;

struct info_options {
  std::filesystem::path file;
  bool header_only = false;
  bool json = false;
};

bool is_vector_file(const std::filesystem::path& path) {
  try {
    static_cast<void>(format_of(path));
    return true;
  } catch (const invalid_argument&) {
    return false;
  }
}

/// Element type of a vector file, in words; files of ids hold integers that are no element type.
std::string type_of(const vector_file& file) {
  try {
    return std::string(to_string(file.type()));
  } catch (const unsupported&) {
    return "integer ids";
  }
}

json info_of_vectors(const std::filesystem::path& path) {
  const vector_file file(path);
  return {{"file", path.string()},
          {"kind", "vectors"},
          {"rows", file.rows()},
          {"dim", file.dim()},
          {"type", type_of(file)},
          {"file_bytes", std::filesystem::file_size(path)},
          {"checksums", "the format has none; header and sizes fit the file"}};
}

json info_of_index(const std::filesystem::path& path, verify checks) {
  const flat_index index = flat_index::load(device::cpu(), path, checks);
  const memory_use memory = index.memory();
  return {{"file", path.string()},
          {"kind", "flat index"},
          {"rows", index.rows()},
          {"dim", index.dim()},
          {"metric", to_string(index.metric())},
          {"type", to_string(index.type())},
          {"storage", to_string(index.storage())},
          {"file_bytes", std::filesystem::file_size(path)},
          {"rows_bytes", memory.rows_bytes},
          {"planes_bytes", memory.planes_bytes},
          {"norms_bytes", memory.norms_bytes},
          {"ids_bytes", memory.ids_bytes},
          {"checksums", checks == verify::full ? "verified" : "not verified (--header-only)"}};
}

/// Bytes of the index file and the files that it names.
std::int64_t bytes_on_disk(const std::filesystem::path& path, const index_summary& summary) {
  auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(path));
  for (const auto& one : summary.segments) bytes += static_cast<std::int64_t>(std::filesystem::file_size(one));
  return bytes;
}

/// With the header alone, of the rows only how many there are.
json info_of_ivf_pq(const std::filesystem::path& path, const index_summary& summary, verify checks) {
  const bool whole = checks == verify::full;
  const ivf_pq_index index =
      whole ? ivf_pq_index::load(device::cpu(), path, checks) : ivf_pq_index::load_trained(device::cpu(), path, checks);
  const ivf_pq_options& options = index.options();
  json found = {{"file", path.string()},
                {"kind", "ivf_pq index"},
                {"rows", summary.rows},
                {"dim", options.dim},
                {"metric", to_string(options.metric)},
                {"type", to_string(options.type)},
                {"nlist", options.nlist},
                {"code", to_string(options.code)},
                {"pq_dim", options.pq_dim},
                {"pq_bits", options.pq_bits},
                {"encodes", to_string(options.encodes)},
                {"rotation", to_string(options.rotation)},
                {"kept_rows", to_string(options.rows)},
                {"segments", summary.segments.size()},
                {"file_bytes", bytes_on_disk(path, summary)}};
  if (whole) {
    const list_statistics lists = index.lists();
    const ivf_pq_memory memory = index.memory();
    found["smallest_list"] = lists.smallest;
    found["median_list"] = lists.median;
    found["largest_list"] = lists.largest;
    found["empty_lists"] = lists.empty;
    found["imbalance"] = lists.imbalance;
    found["model_bytes"] = memory.model_bytes;
    found["codes_bytes"] = memory.codes_bytes;
    found["rows_bytes"] = memory.rows_bytes;
    found["ids_bytes"] = memory.ids_bytes;
  }
  found["checksums"] = whole ? "verified" : "not verified (--header-only)";
  return found;
}

json info_of_index_file(const std::filesystem::path& path, verify checks) {
  const index_summary summary = summarize_index(path);
  return summary.kind == index_kind::flat ? info_of_index(path, checks) : info_of_ivf_pq(path, summary, checks);
}

std::string text_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? fmt::format("{:.3f}", value.get<double>()) : grouped(value.get<std::int64_t>());
}

/// One line a field; sizes for people.
void print_table(const json& info) {
  for (const auto& [key, value] : info.items()) {
    std::string name = key;
    std::string text = text_of(value);
    if (const auto suffix = name.rfind("_bytes"); suffix != std::string::npos) {
      name = name.substr(0, suffix) + (name.starts_with("file") ? " size" : " in memory");
      text = readable_size(value.get<std::int64_t>());
    }
    fmt::print("{:<16} {}\n", name, text);
  }
}

void info(const info_options& options) {
  const json found = is_vector_file(options.file)
                         ? info_of_vectors(options.file)
                         : info_of_index_file(options.file, options.header_only ? verify::header_only : verify::full);
  if (options.json)
    fmt::print("{}\n", found.dump(2));
  else
    print_table(found);
}

}  // namespace

void add_info(CLI::App& app, action& chosen) {
  auto options = std::make_shared<info_options>();
  CLI::App* command = app.add_subcommand("info", "Say what an index file or a file of vectors holds");
  command->add_option("file", options->file, "an index, or fbin, u8bin, i8bin, ibin, fvecs, bvecs, ivecs or npy")
      ->required()
      ->type_name("FILE");
  command->add_flag("--header-only", options->header_only,
                    "check an index's header, and not the checksums of its data");
  command->add_flag("--json", options->json, "as one JSON object");
  command->footer("Example:\n  shortlist info base.safetensors");
  command->callback([options, &chosen] { chosen = [options] { info(*options); }; });
}

}  // namespace shortlist::program
