// Memory that an encoding works in, lent from call to call so that a long text allocates once.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "text/allowance.h"
#include "text/split.h"
#include "text/vocabulary.h"
#include "text/word_cache.h"

namespace qkv::text {

struct Token {
  TokenId id = 0;
  std::uint32_t begin = 0, end = 0;  // bytes of the word
};

// How many characters of a token are spaces at its beginning and its end.
struct OuterSpaces {
  std::uint32_t leading = 0, trailing = 0;
};

struct Workspace {
  Allowance allowance;  // of the call
  Words words, spare;
  std::vector<Token> tokens;
  std::vector<OuterSpaces> outer_spaces;  // of all tokens so far, where spans are trimmed
  WordCache cache;

  // Of BPE: symbols of a word in a list, and the merges that wait.
  struct Symbol {
    TokenId id = 0;
    std::uint32_t size = 0;  // bytes; 0: merged into the one before
    std::int32_t previous = -1, next = -1;
  };
  struct Merge {
    std::uint32_t rank = 0, at = 0;
    TokenId result = 0;
  };
  std::vector<Symbol> symbols;
  std::vector<Merge> merges;

  // Of Unigram: the best way to each byte.
  struct Best {
    double score = 0;
    TokenId id = 0;
    std::uint32_t begin = kUnreached;
  };
  static constexpr std::uint32_t kUnreached = 0xFFFFFFFF;
  std::vector<Best> best;
};

// Workspaces for as many threads as encode at once.
class WorkspacePool {
 public:
  class Loan {
   public:
    explicit Loan(WorkspacePool& pool) : pool_(pool), work_(pool.take()) {}
    ~Loan() { pool_.give_back(std::move(work_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    Workspace& operator*() const { return *work_; }

   private:
    WorkspacePool& pool_;
    std::unique_ptr<Workspace> work_;
  };

 private:
  std::unique_ptr<Workspace> take();
  void give_back(std::unique_ptr<Workspace> work) noexcept;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace qkv::text
