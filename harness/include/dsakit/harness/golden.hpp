// Golden recordings: a folder with manifest.json, which fixes the bytes of every recording in
// data/, and the two steps by which one of them changes. Gates are in rules/ and no step touches
// them.
#pragma once

#include <string>
#include <vector>

#include "dsakit/core/status.hpp"

namespace dsakit::harness {

/// An entry of manifest.json.
struct GoldenEntry {
  std::string id;
  std::string file;   ///< with the folder: "golden/data/kernel_norms.h5"
  std::string sha256; ///< 64 digits
};

/// The entries, in the order of the manifest. bad_input for a manifest that is none, an id twice,
/// or a file outside the folder.
Result<std::vector<GoldenEntry>> read_golden(const std::string& folder);

/// ok where every file of the manifest is there with its SHA-256 and data/ holds nothing else; else
/// bad_input naming the first that is not.
Status check_golden(const std::string& folder);

/// Copies `candidate` to FOLDER/proposed/ID.h5 and returns what accepting it would change, one line
/// a difference; the same text goes to FOLDER/proposed/ID.txt. `id` may be a new one.
Result<std::string> propose_golden(const std::string& folder, const std::string& id,
                                   const std::string& candidate);

/// FOLDER/proposed/ID.h5, where it is.
Result<std::string> proposed_golden(const std::string& folder, const std::string& id);

struct GoldenAcceptance {
  std::string id;
  std::string reason;
  std::string reviewer;
  std::string what;    ///< what the recording holds
  std::string made_by; ///< the command that makes it
};

/// Puts the proposal of that one id in place and writes its SHA-256, these texts and today's date
/// into the manifest; bad_input where one is empty. The recording is in place before the manifest
/// names it.
Status accept_golden(const std::string& folder, const GoldenAcceptance& acceptance);

} // namespace dsakit::harness
