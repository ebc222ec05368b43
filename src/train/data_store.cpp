#include "train/data_store.h"

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "core/threads.h"
#include "qkv/threads.h"
#include "text/hash.h"

namespace qkv::data {
namespace {

// Counts up when what is written changes, or how text becomes tokens.
constexpr int kFormat = 2;

// The chunks of a file, a few for each thread at a time: what is ready is handed on before the next
// are begun, so that memory does not grow with the file.
void tokenize_chunks(const TextFile& file, const Encoder& encoder, const TokenSink& sink,
                     const Report& report) {
  const std::vector<TextChunk>& chunks = file.chunks();
  const auto round = static_cast<std::size_t>(num_threads()) * 4;
  std::vector<TokenPart> parts;
  for (std::size_t begin = 0; begin < chunks.size(); begin += round) {
    const std::size_t count = std::min(round, chunks.size() - begin);
    parts.assign(count, {});
    parallel_for(static_cast<std::int64_t>(count), [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      parts[at] = encoder.encode(file, chunks[begin + at]);
    });
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sink(parts[i]);
      bytes += chunks[begin + i].text.size();
    }
    if (report) report(bytes);
  }
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  check(!error, "the cache of tokens, {}: {}", folder, error.message());
}

}  // namespace

TokenFile tokenize_file(const TextFile& file, const Encoder& encoder, const std::string& cache,
                        const Report& report) {
  const TokenSource source = [&](const TokenSink& sink) {
    tokenize_chunks(file, encoder, sink, report);
  };
  if (cache.empty()) return TokenFile::in_memory(source);
  const std::string key =
      fmt::format("format {}\nfile {} {:016x}\n", kFormat, file.bytes(), file.hash()) +
      encoder.key();
  make_folder(cache);
  const std::filesystem::path text(file.path());
  const std::string path =
      (std::filesystem::path(cache) /
       fmt::format("{}-{:016x}.tokens", text.stem().string().substr(0, 80), text::hash_of(key)))
          .string();
  if (auto found = TokenFile::open(path, key)) {
    if (report) report(file.bytes());
    return *std::move(found);
  }
  TokenFile::write(path, key, source);
  auto made = TokenFile::open(path, key);
  check(made.has_value(), "{}: written, but cannot be read back", path);
  return *std::move(made);
}

}  // namespace qkv::data
