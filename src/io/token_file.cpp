#include "io/token_file.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/check.h"
#include "io/checksum.h"
#include "io/file.h"
#include "io/mapped_file.h"
#include "qkv/error.h"

namespace qkv {
namespace {

// The file, in the byte order of the machine: tokens, records, the key, each from a multiple of 8
// bytes on, and an end that says how much there is of each. It is written last, so a file that was
// cut off has none. Two checksums see every byte: one of tokens and records, zeros between them,
// and one of all behind them, where it counts as 0 itself.
struct End {
  std::uint64_t tokens = 0, records = 0, key_bytes = 0;
  std::uint64_t examples = 0, left_out = 0;
  std::uint64_t content = 0, rest = 0;
  std::uint64_t magic = 0;
};
constexpr std::uint64_t kMagic = 0x32304B4F54564B51;  // "QKVTOK02"; another byte order reads other
static_assert(sizeof(End) == 64 && sizeof(TokenRecord) == 32);
static_assert(std::is_trivially_copyable_v<End> && std::is_trivially_copyable_v<TokenRecord>);

constexpr std::uint64_t kZeros = 0;
constexpr std::uint64_t padded(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

std::uint64_t size_of_file(const End& end) {
  return padded(end.tokens * sizeof(std::int32_t)) + end.records * sizeof(TokenRecord) +
         padded(end.key_bytes) + sizeof(End);
}

// The counts of a file of `size` bytes, if they are such that the file has just these bytes.
std::optional<End> read_end(const std::byte* data, std::uint64_t size) {
  if (size < sizeof(End)) return {};
  End end;
  std::memcpy(&end, data + (size - sizeof(End)), sizeof(End));
  // None is more than the file has bytes, so that no product below overflows.
  const bool is_ours =
      end.magic == kMagic && end.tokens <= size && end.records <= size && end.key_bytes <= size;
  if (!is_ours || size > std::numeric_limits<std::uint64_t>::max() / 64) return {};
  if (size_of_file(end) != size) return {};
  return end;
}

// Behind the records: the key with its padding, and the end.
std::uint64_t rest_of(std::string_view key, End end) {
  end.rest = 0;
  Checksum sum;
  sum.add(std::as_bytes(std::span(key)));
  sum.add(std::as_bytes(std::span(&kZeros, 1)).first(padded(key.size()) - key.size()));
  sum.add(std::as_bytes(std::span(&end, 1)));
  return sum.value();
}

// Examples lie one behind the other and are all there is.
bool are_sound(std::span<const TokenRecord> records, std::uint64_t tokens) {
  std::uint64_t at = 0;
  for (const TokenRecord& record : records) {
    const std::uint64_t count = std::uint64_t{record.source} + record.target;
    if (record.first != at || count > tokens - at) return false;
    at += count;
  }
  return records.empty() || at == tokens;
}

// Puts the records of a part behind those before it.
void append_records(std::vector<TokenRecord>& records, const TokenPart& part,
                    std::uint64_t tokens_before) {
  for (TokenRecord record : part.records) {
    record.first += tokens_before;
    records.push_back(record);
  }
}

struct Memory {
  std::vector<std::int32_t> tokens;
  std::vector<TokenRecord> records;
};

}  // namespace

std::optional<TokenFile> TokenFile::open(const std::string& path, std::string_view key) {
  std::shared_ptr<const MappedFile> mapped;
  try {
    mapped = MappedFile::open(path);
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error&) {  // not there, or no file: it is made, or making it says why not
    return {};
  }
  const std::byte* data = mapped->data();
  const std::optional<End> end = read_end(data, mapped->size());
  if (!end) return {};
  const std::byte* records = data + padded(end->tokens * sizeof(std::int32_t));
  const std::byte* stored_key = records + end->records * sizeof(TokenRecord);
  if (std::string_view(reinterpret_cast<const char*>(stored_key), end->key_bytes) != key) return {};
  const std::byte* padding = stored_key + end->key_bytes;
  const bool is_padded = std::all_of(padding, data + (mapped->size() - sizeof(End)),
                                     [](std::byte byte) { return byte == std::byte{0}; });
  if (!is_padded || end->rest != rest_of(key, *end)) return {};
  Checksum content;
  content.add({data, stored_key});
  if (content.value() != end->content) return {};
  drop_mapped_pages(data, stored_key);  // memory holds what is touched from here on

  TokenFile file;
  file.tokens_ = {reinterpret_cast<const std::int32_t*>(data), end->tokens};
  file.records_ = {reinterpret_cast<const TokenRecord*>(records), end->records};
  file.examples_ = end->examples;
  file.left_out_ = end->left_out;
  file.checksum_ = end->content;
  if (!are_sound(file.records_, end->tokens)) return {};
  file.owner_ = mapped;
  return file;
}

void TokenFile::write(const std::string& path, std::string_view key, const TokenSource& source) {
  write_file_atomically(path, [&](const FileSink& sink) {
    Checksum content;
    const auto put = [&](const void* data, std::uint64_t bytes) {
      const std::span all(static_cast<const std::byte*>(data), bytes);
      content.add(all);
      sink(all);
    };
    const auto pad = [&](std::uint64_t bytes) { put(&kZeros, padded(bytes) - bytes); };
    End end{.magic = kMagic};
    std::vector<TokenRecord> records;
    source([&](const TokenPart& part) {
      append_records(records, part, end.tokens);
      put(part.tokens.data(), part.tokens.size() * sizeof(std::int32_t));
      end.tokens += part.tokens.size();
      end.examples += part.examples;
      end.left_out += part.left_out;
    });
    pad(end.tokens * sizeof(std::int32_t));
    put(records.data(), records.size() * sizeof(TokenRecord));
    end.records = records.size();
    end.key_bytes = key.size();
    end.content = content.value();
    end.rest = rest_of(key, end);
    put(key.data(), key.size());
    pad(key.size());
    put(&end, sizeof end);
  });
}

TokenFile TokenFile::in_memory(const TokenSource& source) {
  const auto memory = std::make_shared<Memory>();
  TokenFile file;
  source([&](const TokenPart& part) {
    append_records(memory->records, part, memory->tokens.size());
    memory->tokens.insert(memory->tokens.end(), part.tokens.begin(), part.tokens.end());
    file.examples_ += part.examples;
    file.left_out_ += part.left_out;
  });
  file.tokens_ = memory->tokens;
  file.records_ = memory->records;
  file.owner_ = memory;
  Checksum content;
  const auto tokens = std::as_bytes(file.tokens_);
  content.add(tokens);
  content.add(std::as_bytes(std::span(&kZeros, 1)).first(padded(tokens.size()) - tokens.size()));
  content.add(std::as_bytes(file.records_));
  file.checksum_ = content.value();
  return file;
}

}  // namespace qkv
