#include "manifest.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include <openssl/evp.h>

#include "../import/json.hpp"
#include "../recording/ordinary_file.hpp"
#include "../recording/text.hpp"
#include "dsakit/harness/golden.hpp"
#include "dsakit/harness/report.hpp"

namespace dsakit::harness {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSchema = "dsakit-golden/1";

bool is_text(const OrderedJson& object, const char* key) {
  return object.contains(key) && object[key].is_string();
}

std::string hexadecimal(std::span<const unsigned char> digest) {
  std::string text;
  for (const unsigned char byte : digest)
    for (const int nibble : {byte >> 4, byte & 15})
      text += "0123456789abcdef"[nibble];
  return text;
}

} // namespace

Status check_golden_id(const std::string& id) {
  const bool fine =
      !id.empty() && id.size() <= 200 && id[0] != '.' &&
      std::all_of(id.begin(), id.end(), [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
      });
  return fine
             ? Status{}
             : bad_input("golden id: found '" + id +
                         "', want at most 200 letters, digits, '_', '-' and '.', the first no '.'");
}

Result<std::string> sha256_of(const std::string& path) {
  DSAKIT_TRY(size_of_ordinary_file(path));
  std::ifstream file(path, std::ios::binary);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  std::vector<char> block(1 << 20);
  do {
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    EVP_DigestUpdate(context.get(), block.data(), static_cast<std::size_t>(file.gcount()));
  } while (file);
  if (!file.eof()) return bad_input(path + ": cannot be read");
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(context.get(), digest, &size);
  return hexadecimal({digest, size});
}

std::string sha256_of_bytes(std::span<const std::byte> bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr);
  return hexadecimal({digest, size});
}

Result<GoldenManifest> GoldenManifest::read(const std::string& folder) {
  GoldenManifest manifest{(fs::path(folder) / "manifest.json").string(), {}};
  const auto fail = [&](const std::string& what) { return bad_input(manifest.path + ": " + what); };
  const auto text = read_text_file(manifest.path);
  DSAKIT_TRY(text);
  DSAKIT_TRY(parse_json(manifest.path, *text, 4));
  manifest.json = OrderedJson::parse(*text); // in the file's order; it was parsed above
  const OrderedJson& json = manifest.json;
  if (!json.is_object() || !is_text(json, "schema") || json["schema"] != kSchema)
    return fail(std::string("found another schema, want ") + kSchema);
  if (!json.contains("entries") || !json["entries"].is_array())
    return fail("entries: found no list, want one");
  std::set<std::string> ids;
  for (const OrderedJson& entry : json["entries"]) {
    for (const char* key : {"id", "file", "sha256"})
      if (!entry.is_object() || !is_text(entry, key))
        return fail(std::string("an entry has no text ") + key);
    const auto id = entry["id"].get<std::string>();
    if (const Status status = check_golden_id(id); !status) return fail(status.what());
    if (!ids.insert(id).second) return fail("found " + id + " twice, want it once");
    if (entry["file"] != "data/" + id + ".h5")
      return fail(id + ": found file " + entry["file"].get<std::string>() + ", want data/" + id +
                  ".h5");
  }
  return manifest;
}

OrderedJson* GoldenManifest::find(const std::string& id) {
  for (OrderedJson& entry : json["entries"])
    if (entry["id"] == id) return &entry;
  return nullptr;
}

Status GoldenManifest::write() const {
  return write_report(path, json.dump(2) + "\n");
}

Result<std::vector<GoldenEntry>> read_golden(const std::string& folder) {
  const auto manifest = GoldenManifest::read(folder);
  DSAKIT_TRY(manifest);
  std::vector<GoldenEntry> entries;
  for (const OrderedJson& entry : manifest->json["entries"])
    entries.push_back({entry["id"].get<std::string>(),
                       (fs::path(folder) / entry["file"].get<std::string>()).string(),
                       entry["sha256"].get<std::string>()});
  return entries;
}

Status check_golden(const std::string& folder) {
  const auto entries = read_golden(folder);
  DSAKIT_TRY(entries);
  if (entries->empty())
    return bad_input((fs::path(folder) / "manifest.json").string() +
                     ": found no entry, want at least one recording");
  std::set<std::string> listed;
  for (const GoldenEntry& entry : *entries) {
    listed.insert(entry.file);
    const auto found = sha256_of(entry.file);
    DSAKIT_TRY(found);
    if (*found != entry.sha256)
      return bad_input(entry.file + ": found sha256 " + *found + ", want " + entry.sha256 +
                       " (manifest.json; golden propose and golden accept change it)");
  }
  std::error_code error;
  for (fs::directory_iterator item(fs::path(folder) / "data", error), end; !error && item != end;
       item.increment(error))
    if (!listed.contains(item->path().string()))
      return bad_input(item->path().string() + ": found a file that manifest.json does not list");
  if (error) return bad_input((fs::path(folder) / "data").string() + ": " + error.message());
  return {};
}

} // namespace dsakit::harness
