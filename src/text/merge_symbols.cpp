#include <algorithm>

#include "text/bpe.h"

namespace qkv::text {
namespace {

using Symbol = Workspace::Symbol;
using Merge = Workspace::Merge;

// Few symbols are merged fastest by looking at all of them each time.
constexpr std::size_t kFew = 24;

void merge_few(const MergeTable& merges, std::vector<Symbol>& symbols) {
  std::array<const MergeTable::Rule*, kFew> rules;  // of each symbol with the next
  std::size_t count = symbols.size();
  for (std::size_t i = 0; i + 1 < count; ++i) {
    rules[i] = merges.find(symbols[i].id, symbols[i + 1].id);
  }
  while (count > 1) {
    std::size_t best = count;
    std::uint32_t rank = 0;
    for (std::size_t i = 0; i + 1 < count; ++i) {
      if (rules[i] != nullptr && (best == count || rules[i]->rank < rank)) {
        best = i;
        rank = rules[i]->rank;
      }
    }
    if (best == count) break;
    symbols[best].id = rules[best]->result;
    symbols[best].size += symbols[best + 1].size;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    --count;
    for (std::size_t i = best + 1; i + 1 < count; ++i) rules[i] = rules[i + 1];
    if (best + 1 < count) rules[best] = merges.find(symbols[best].id, symbols[best + 1].id);
    if (best > 0) rules[best - 1] = merges.find(symbols[best - 1].id, symbols[best].id);
  }
}

// A heap of the merges that are possible: n log n, whatever the length of the word.
void merge_many(const MergeTable& merges, std::vector<Symbol>& symbols, std::vector<Merge>& heap) {
  const auto later = [](const Merge& a, const Merge& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto rule_at = [&](std::int32_t at) -> const MergeTable::Rule* {
    if (at < 0 || symbols[static_cast<std::size_t>(at)].next < 0) return nullptr;
    const Symbol& left = symbols[static_cast<std::size_t>(at)];
    return merges.find(left.id, symbols[static_cast<std::size_t>(left.next)].id);
  };
  heap.clear();
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = static_cast<std::int32_t>(i) - 1;
    symbols[i].next = i + 1 < symbols.size() ? static_cast<std::int32_t>(i + 1) : -1;
  }
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    if (const auto* rule = rule_at(static_cast<std::int32_t>(i))) {
      heap.push_back({rule->rank, static_cast<std::uint32_t>(i), rule->result});
    }
  }
  std::ranges::make_heap(heap, later);
  const auto push = [&](std::int32_t at) {
    if (const auto* rule = rule_at(at)) {
      heap.push_back({rule->rank, static_cast<std::uint32_t>(at), rule->result});
      std::ranges::push_heap(heap, later);
    }
  };
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, later);
    const Merge merge = heap.back();
    heap.pop_back();
    Symbol& left = symbols[merge.at];
    const auto* rule = left.size == 0 ? nullptr : rule_at(static_cast<std::int32_t>(merge.at));
    if (rule == nullptr || rule->result != merge.result) continue;  // its symbols are gone
    Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    left.id = merge.result;
    left.size += right.size;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) {
      symbols[static_cast<std::size_t>(left.next)].previous = static_cast<std::int32_t>(merge.at);
    }
    push(left.previous);
    push(static_cast<std::int32_t>(merge.at));
  }
  std::erase_if(symbols, [](const Symbol& symbol) { return symbol.size == 0; });
}

}  // namespace

void merge_symbols(const MergeTable& merges, Workspace& work) {
  if (work.symbols.size() <= kFew) {
    merge_few(merges, work.symbols);
  } else {
    merge_many(merges, work.symbols, work.merges);
  }
}

}  // namespace qkv::text
