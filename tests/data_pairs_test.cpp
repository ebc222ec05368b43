// Pairs as batches: what is in them, that all are there, and in an order that can be had again.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>

#include "expect_error.h"
#include "qkv/data.h"
#include "qkv/threads.h"
#include "qkv/translate.h"
#include "support/data_folder.h"
#include "support/goldens.h"

namespace qkv {
namespace {

using testing::DataFolder;
using testing::Ids;
using testing::rows_of;
using testing::shown;

const ModelInfo kPairsModel = testing::model_info(ModelKind::encoder_decoder);

DataOptions pairs(std::vector<DataFile> files) {
  return {.task = Task::sequence_to_sequence, .files = std::move(files)};
}

TEST(DataPairs, EndWithEosAndArePaddedOnTheRight) {
  const DataFolder folder;
  DataOptions options = pairs({{folder.write("x.tsv", "a b\tc\r\nd\te f g\n")}});
  options.shuffle = false;
  const Dataset data(options, folder.tokenizer(), kPairsModel);
  ASSERT_EQ(data.batches(0), 1);
  EXPECT_EQ(data.examples(), 2);
  EXPECT_EQ(data.tokens(), 11);
  const Batch batch = data.batch({});
  EXPECT_EQ(batch.examples, (Ids{1, 0}));  // shorter sources first
  EXPECT_EQ(rows_of(batch.input.ids), (std::vector<Ids>{{8, 1, 0}, {5, 6, 1}}));
  EXPECT_EQ(batch.input.mask.to_vector<std::uint8_t>(),
            (std::vector<std::uint8_t>{1, 1, 0, 1, 1, 1}));
  EXPECT_EQ(rows_of(batch.labels), (std::vector<Ids>{{9, 10, 11, 1}, {7, 1, -100, -100}}));
  EXPECT_EQ(rows_of(batch.input.decoder_ids), (std::vector<Ids>{{0, 9, 10, 11}, {0, 7, 1, 0}}));
  EXPECT_EQ(batch.tokens, 6);
  EXPECT_EQ(batch.read, 11);
  EXPECT_EQ(data.text(0).source, "a b");
  EXPECT_EQ(data.text(1).target, "e f g");
  EXPECT_EQ(data.source(0), (Ids{5, 6, 1}));
}

TEST(DataPairs, DecoderReadsWhatTheModelWouldMakeOfTheLabels) {
  const DataFolder folder;
  const auto model = load_model(test::golden("marian"));
  const Dataset data(pairs({{folder.pairs("x.tsv", 40)}}), folder.tokenizer(), model->info());
  for (std::int64_t b = 0; b < data.batches(0); ++b) {
    const Batch batch = data.batch({0, b});
    EXPECT_EQ(rows_of(batch.input.decoder_ids), rows_of(model->decoder_inputs(batch.labels)));
    EXPECT_GT(model->loss(batch.input, batch.labels).to_vector<float>()[0], 0);
  }
}

TEST(DataPairs, AppearOnceInEveryEpochWithinTheLimit) {
  const DataFolder folder;
  DataOptions options = pairs({{folder.pairs("x.tsv", 500)}, {folder.pairs("y.tsv", 77)}});
  options.batch_tokens = 300;
  const Dataset data(options, folder.tokenizer(), kPairsModel);
  EXPECT_EQ(data.examples(), 577);
  std::set<std::string> epochs;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::int64_t> seen;
    std::int64_t read = 0;
    for (std::int64_t b = 0; b < data.batches(epoch); ++b) {
      const Batch batch = data.batch({epoch, b});
      EXPECT_LE(batch.input.ids.numel() + batch.labels.numel(), options.batch_tokens);
      seen.insert(batch.examples.begin(), batch.examples.end());
      read += batch.read;
      for (std::size_t i = 0; i < batch.examples.size(); ++i) {
        Ids row = rows_of(batch.input.ids)[i];
        while (row.back() == 0) row.pop_back();
        EXPECT_EQ(row, data.source(batch.examples[i]));
      }
    }
    EXPECT_EQ(seen.size(), 577U);
    EXPECT_EQ(read, data.tokens());
    epochs.insert(shown(data, epoch));
  }
  EXPECT_EQ(epochs.size(), 3U);
}

TEST(DataPairs, OrderDependsOnSeedAndPositionAlone) {
  const DataFolder folder;
  DataOptions options = pairs({{folder.pairs("x.tsv", 300)}});
  options.batch_tokens = 200;
  options.seed = 7;
  const Dataset data(options, folder.tokenizer(), kPairsModel);
  const std::string third = shown(data, 3);
  const int threads = num_threads();
  set_num_threads(3);
  const Dataset again(options, folder.tokenizer(), kPairsModel);
  set_num_threads(threads);
  EXPECT_EQ(shown(again.batch({3, 5})), shown(data.batch({3, 5})));
  EXPECT_EQ(shown(again, 3), third);
  // The same on every machine and in every version: a run can be taken up again.
  EXPECT_EQ(data.batch({0, 0}).examples, (Ids{134, 103, 40, 15, 18, 85, 6, 123}));
  options.seed = 8;
  EXPECT_NE(shown(Dataset(options, folder.tokenizer(), kPairsModel), 3), third);
  options.shuffle = false;
  const Dataset fixed(options, folder.tokenizer(), kPairsModel);
  EXPECT_EQ(shown(fixed, 0), shown(fixed, 1));
  EXPECT_EQ(data.after({3, 0}), (DataPosition{3, 1}));
  EXPECT_EQ(data.after({3, data.batches(3) - 1}), (DataPosition{4, 0}));
  EXPECT_ERROR("there is no", data.batch({0, data.batches(0)}));
  EXPECT_ERROR("there is no", data.batch({0, -1}));
  EXPECT_ERROR("no epoch -1", data.batches(-1));
}

TEST(DataPairs, GetTheirPrefixAtTheRateAskedFor) {
  const DataFolder folder;
  DataOptions options =
      pairs({{folder.pairs("x.tsv", 400), ">>x<<"}, {folder.pairs("y.tsv", 100), "q r"}});
  // The examples of the first file that have it.
  const auto prefixed = [&](double rate, std::int64_t epoch) {
    options.prefix_rate = rate;
    const Dataset data(options, folder.tokenizer(), kPairsModel);
    std::set<std::int64_t> with;
    for (std::int64_t b = 0; b < data.batches(epoch); ++b) {
      const Batch batch = data.batch({epoch, b});
      for (std::size_t i = 0; i < batch.examples.size(); ++i) {
        const Ids row = rows_of(batch.input.ids)[i];
        Ids bare = data.source(batch.examples[i], false), full = data.source(batch.examples[i]);
        bare.resize(row.size(), 0);
        if (row == bare) continue;
        full.resize(row.size(), 0);
        EXPECT_EQ(row, full);
        if (row[0] == 4) with.insert(batch.examples[i]);
      }
    }
    return with;
  };
  EXPECT_EQ(prefixed(1, 0).size(), 400U);
  EXPECT_EQ(prefixed(0, 0).size(), 0U);
  const auto half = prefixed(0.5, 0);
  EXPECT_NEAR(static_cast<double>(half.size()), 200, 40);
  EXPECT_NE(prefixed(0.5, 1), half);
  EXPECT_EQ(prefixed(0.5, 0), half);
  // Two words where the tokenizer has no such token.
  const Dataset data(options, folder.tokenizer(), kPairsModel);
  const Ids ids = data.source(400);
  EXPECT_EQ(Ids(ids.begin(), ids.begin() + 2), (Ids{21, 22}));
  EXPECT_EQ(ids, source_tokens(folder.tokenizer(), kPairsModel, data.text(400).source, "q r"));
}

TEST(DataPairs, PrefixStandsBehindWhatTheTemplatePutsFirst) {
  const DataFolder folder;
  const Tokenizer tokenizer = folder.tokenizer(true);
  const Dataset data(pairs({{folder.write("x.tsv", "a b\tc\n"), "q"}}), tokenizer, kPairsModel);
  EXPECT_EQ(data.source(0), (Ids{4, 21, 5, 6, 1}));
  EXPECT_EQ(data.source(0, false), (Ids{4, 5, 6, 1}));
  EXPECT_EQ(source_tokens(tokenizer, kPairsModel, "a b", "q"), data.source(0));
  EXPECT_EQ(rows_of(data.batch({}).input.ids), (std::vector<Ids>{data.source(0)}));
}

TEST(DataPairs, LeavesOutWhatIsTooLongOrEmpty) {
  const DataFolder folder;
  DataOptions options =
      pairs({{folder.write("x.tsv", "a b c\td\n\na\tb c d e\na\tb\n\tc\nd\t\nb\tc"), ">>x<<"}});
  options.max_source = 4;
  options.max_target = 4;
  options.prefix_rate = 0;
  EXPECT_EQ(Dataset(options, folder.tokenizer(), kPairsModel).examples(), 3);
  EXPECT_EQ(Dataset(options, folder.tokenizer(), kPairsModel).skipped(), 3);
  options.prefix_rate = 0.5;  // some may get it: then the first is too long
  const Dataset data(options, folder.tokenizer(), kPairsModel);
  EXPECT_EQ(data.examples(), 2);
  EXPECT_EQ(data.text(1).source, "b");
  options.max_target = 1;
  EXPECT_ERROR("there are no examples", Dataset(options, folder.tokenizer(), kPairsModel));
  options.max_source = options.max_target = 1000;
  ModelInfo narrow = kPairsModel;
  narrow.max_positions = 2;
  EXPECT_ERROR("6 were left out", Dataset(options, folder.tokenizer(), narrow));
  options.prefix_rate = 0;
  EXPECT_EQ(Dataset(options, folder.tokenizer(), narrow).examples(), 2);
}

TEST(DataPairs, TakesOtherColumns) {
  const DataFolder folder;
  DataOptions options = pairs({{folder.write("x.tsv", "1\ta\tx\tb\n2\tc\ty\td\n")}});
  options.source_column = 3;
  options.target_column = 1;
  const Dataset data(options, folder.tokenizer(), kPairsModel);
  EXPECT_EQ(data.text(1).source + data.text(1).target, "dc");
  EXPECT_EQ(data.source(1), (Ids{8, 1}));
}

TEST(DataPairs, SaysWhatIsWrongAndWhere) {
  const DataFolder folder;
  const auto error = [&](const std::string& part, const std::string& content) {
    const std::string path = folder.write("bad.tsv", content);
    EXPECT_ERROR(part, Dataset(pairs({{path}}), folder.tokenizer(), kPairsModel));
  };
  std::string many;
  for (int i = 0; i < 40000; ++i) many += "a b c d\te\n";  // more than one chunk
  error("bad.tsv:2: there is no column 1, only 1", "a\tb\nc\n");
  error("bad.tsv:40001: there is no column 1", many + "c\n");
  error("bad.tsv:40002: the bytes from 400006 on", many + "a\tb\nc\t\xC3(\n");
  error("the file is empty", "");
  error("there are no examples", "\n\n");
  EXPECT_ERROR("cannot open",
               Dataset(pairs({{folder.path("no.tsv")}}), folder.tokenizer(), kPairsModel));
  EXPECT_ERROR("no files", Dataset(pairs({}), folder.tokenizer(), kPairsModel));
  const std::string fine = folder.write("fine.tsv", "a\tz\n");
  EXPECT_ERROR(
      "needs an encoder-decoder, but None is a decoder",
      Dataset(pairs({{fine}}), folder.tokenizer(), testing::model_info(ModelKind::decoder)));
  ModelInfo model = kPairsModel;
  model.vocabulary = 30;
  EXPECT_ERROR("gives id 30, but the model knows only 30",
               Dataset(pairs({{fine}}), folder.tokenizer(), model));
  model = kPairsModel;
  model.eos_ids.clear();
  EXPECT_ERROR("eos_token_id", Dataset(pairs({{fine}}), folder.tokenizer(), model));
  EXPECT_ERROR("has no columns", Dataset(pairs({{folder.write("x.json", "[\"a\"]")}}),
                                         folder.tokenizer(), kPairsModel));
  EXPECT_ERROR("sequence-to-sequence", task_from_string("translation"));
  EXPECT_EQ(task_from_string("masked-lm"), Task::masked_lm);
}

TEST(DataPairs, TextsAreThoseOfTheFileAsItWas) {
  const DataFolder folder;
  const std::string path = folder.write("x.tsv", "a\tb\n");
  const Dataset data(pairs({{path}}), folder.tokenizer(), kPairsModel);
  EXPECT_EQ(data.text(0).target, "b");
  EXPECT_ERROR("there is no example 1", data.text(1));
  const auto time = std::filesystem::last_write_time(path);
  folder.write("x.tsv", "a\tb\nc\td\n");
  std::filesystem::last_write_time(path, time);  // another size
  EXPECT_ERROR("was changed", data.text(0));
  folder.write("x.tsv", "a\tc\n");
  std::filesystem::last_write_time(path, time + std::chrono::seconds(2));  // another time
  EXPECT_ERROR("was changed", data.text(0));
  std::filesystem::remove(path);
  EXPECT_ERROR("was changed", data.text(0));
  EXPECT_EQ(data.source(0), (Ids{5, 1}));
}

// What the corpus of the shipped translator costs in padding.
TEST(DataPairs, TatoebaNeedsLittlePadding) {
  const std::filesystem::path shared = std::filesystem::path(QKV_TEST_DATA) / "../../../shared";
  const auto corpus = shared / "corpora/tatoeba/spa-eng.train.tsv";
  const auto vocabulary = shared / "tokenizers/marian";
  if (!std::filesystem::exists(corpus)) GTEST_SKIP() << corpus << " is not here";
  if (!std::filesystem::exists(vocabulary)) GTEST_SKIP() << vocabulary << " is not here";
  ModelInfo model = kPairsModel;
  const Tokenizer tokenizer = Tokenizer::load(vocabulary.string());
  model.vocabulary = tokenizer.size();
  DataOptions options = pairs({{corpus.string()}});
  options.batch_tokens = 8000;
  const Dataset data(options, tokenizer, model);
  EXPECT_EQ(data.examples() + data.skipped(), 117197);
  std::int64_t read = 0, padded = 0;
  for (std::int64_t b = 0; b < data.batches(0); ++b) {
    const Batch batch = data.batch({0, b});
    read += batch.read;
    padded += batch.input.ids.numel() + batch.labels.numel();
  }
  EXPECT_EQ(read, data.tokens());
  EXPECT_LT(static_cast<double>(padded), 1.05 * static_cast<double>(read));
}

}  // namespace
}  // namespace qkv
