// Running text as batches: for language models and masked ones; and texts with labels.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "expect_error.h"
#include "io/json_texts.h"
#include "qkv/data.h"
#include "support/data_folder.h"
#include "support/goldens.h"
#include "train/data_text.h"

namespace qkv {
namespace {

using testing::DataFolder;
using testing::Ids;
using testing::rows_of;
using testing::shown;

const ModelInfo kDecoder = testing::model_info(ModelKind::decoder);
const ModelInfo kEncoder = testing::model_info(ModelKind::encoder);

// Words a, b, c, ... over and over, with a space between them.
std::string words(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += {static_cast<char>('a' + i % 26), ' '};
  return text;
}

// All tokens, as one row says them.
Ids stream_of(const DataOptions& options, const Tokenizer& tokenizer, const ModelInfo& model) {
  DataOptions whole = options;
  whole.block = 64;
  whole.shuffle = false;
  const Dataset data(whole, tokenizer, model);
  EXPECT_EQ(data.batches(0), 1);
  return rows_of(data.batch({}).input.ids).at(0);
}

TEST(DataText, EveryTokenIsPredictedOnceInEveryEpoch) {
  const DataFolder folder;
  for (const int count : {1, 2, 14, 15, 16, 17, 100}) {
    DataOptions options{
        .files = {{folder.write("x.txt", words(count))}}, .block = 16, .batch_tokens = 48};
    const Dataset data(options, folder.tokenizer(), kDecoder);
    EXPECT_EQ(data.tokens(), count + 1);
    EXPECT_EQ(data.examples(), 1);
    Ids all;  // the text and </s>
    for (int i = 0; i < count; ++i) all.push_back(5 + i % 26);
    all.push_back(1);
    for (std::int64_t epoch = 0; epoch < 6; ++epoch) {
      std::map<Ids, int> rows;
      std::int64_t predicted = 0;
      for (std::int64_t b = 0; b < data.batches(epoch); ++b) {
        const Batch batch = data.batch({epoch, b});
        EXPECT_LE(batch.input.ids.numel(), 48);
        EXPECT_FALSE(batch.input.mask.defined());
        predicted += batch.tokens;
        for (Ids row : rows_of(batch.labels)) {
          const auto end = std::ranges::find(row, -100);
          EXPECT_EQ(std::count(end, row.end(), -100), row.end() - end);
          row.erase(end, row.end());
          ASSERT_GE(row.size(), 2U);
          ASSERT_LE(row.size(), 16U);
          EXPECT_FALSE(std::ranges::search(all, row).empty());
          ++rows[row];
        }
        EXPECT_EQ(rows_of(batch.labels)[0][0], rows_of(batch.input.ids)[0][0]);
      }
      EXPECT_EQ(predicted, count) << "epoch " << epoch;
    }
  }
}

TEST(DataText, RowsBeginElsewhereInEveryEpochUnlessTheyAreToStay) {
  const DataFolder folder;
  DataOptions options{.files = {{folder.write("x.txt", words(100))}}, .block = 16};
  const Dataset data(options, folder.tokenizer(), kDecoder);
  EXPECT_NE(shown(data, 0), shown(data, 1));
  EXPECT_EQ(shown(data, 1), shown(Dataset(options, folder.tokenizer(), kDecoder), 1));
  options.shuffle = false;
  const Dataset fixed(options, folder.tokenizer(), kDecoder);
  EXPECT_EQ(shown(fixed, 0), shown(fixed, 1));
  const auto rows = rows_of(fixed.batch({}).input.ids);
  EXPECT_EQ(rows[0].back(), rows[1].front());  // the last of a row is read again to go on from
  EXPECT_EQ(rows[1].back(), rows[2].front());
}

TEST(DataText, DocumentsEndWhereOneSays) {
  const DataFolder folder;
  const Tokenizer tokenizer = folder.tokenizer();
  const std::string text = "a b\nc\n\n\nd\n", crlf = "a b\r\nc\r\n\r\n\r\nd\r\n";
  DataOptions options{.files = {{folder.write("x.txt", text)}}};
  const auto stream = [&] { return stream_of(options, tokenizer, kDecoder); };
  EXPECT_EQ(stream(), (Ids{5, 6, 7, 8, 1}));
  options.documents = Documents::paragraph;
  EXPECT_EQ(stream(), (Ids{5, 6, 7, 1, 8, 1}));
  options.documents = documents_from_string("line");
  EXPECT_EQ(stream(), (Ids{5, 6, 1, 7, 1, 8, 1}));
  options.files = {{folder.write("crlf.txt", "\xEF\xBB\xBF" + crlf)}};
  EXPECT_EQ(stream(), (Ids{5, 6, 1, 7, 1, 8, 1}));
  options.documents = Documents::paragraph;
  EXPECT_EQ(stream(), (Ids{5, 6, 7, 1, 8, 1}));
  options.files.push_back({folder.write("x.json", R"([ "a\n\nb", "", "c" ])")});
  EXPECT_EQ(stream(), (Ids{5, 6, 7, 1, 8, 1, 5, 6, 1, 7, 1}));
  ModelInfo with_bos = kDecoder;
  with_bos.bos_id = 4;
  options.files.pop_back();
  EXPECT_EQ(stream_of(options, tokenizer, with_bos), (Ids{4, 5, 6, 7, 1, 4, 8, 1}));
  EXPECT_ERROR("file, paragraph, line", documents_from_string("page"));
}

TEST(DataText, LineEndsAreTheSameTokensAsOtherLineEnds) {
  const DataFolder folder;
  const Tokenizer tokenizer =
      train_tokenizer({folder.write("x.txt", "a b\nc\n\nd\n")}, {.size = 270, .min_frequency = 1});
  ModelInfo model = kDecoder;
  model.vocabulary = 270;
  const auto stream = [&](const std::string& text) {
    return stream_of({.files = {{folder.write("y.txt", text)}}}, tokenizer, model);
  };
  EXPECT_EQ(stream("a b\r\nc\r\n\r\nd\r\n"), stream("a b\nc\n\nd\n"));
  EXPECT_NE(stream("a b\rc\n\nd\n"), stream("a b\nc\n\nd\n"));
}

TEST(DataText, LongFilesGiveTheTokensOfShortOnes) {
  const DataFolder folder;
  std::string text;
  for (int i = 0; i < 30000; ++i) text += i % 2 == 0 ? "a b c d e f g h\n" : "i j k l m n o p\n\n";
  for (const Documents documents : {Documents::file, Documents::paragraph, Documents::line}) {
    DataOptions options{
        .files = {{folder.write("x.txt", text)}}, .documents = documents, .block = 64};
    const Dataset data(options, folder.tokenizer(), kDecoder);
    const std::int64_t ends = documents == Documents::file        ? 1
                              : documents == Documents::paragraph ? 15000
                                                                  : 30000;
    EXPECT_EQ(data.examples(), ends);
    EXPECT_EQ(data.tokens(), 30000 * 8 + ends);
  }
  // One word longer than what is tokenised at once, in characters of three bytes.
  std::string word;
  for (int i = 0; i < 200000; ++i) word += "\xE2\x82\xAC";
  const Tokenizer bytes =
      train_tokenizer({folder.write("w.txt", "abc")}, {.size = 257, .min_frequency = 1});
  ModelInfo model = kDecoder;
  model.vocabulary = 257;
  const Dataset data({.files = {{folder.write("x.txt", word)}}, .block = 64}, bytes, model);
  EXPECT_EQ(data.tokens(), 600001);
}

TEST(DataText, LongDocumentsAreCutAtLinesElseAtSpaces) {
  const auto check_pieces = [](const std::string& document, char before, char behind) {
    std::string joined;
    const auto pieces = data::pieces_of(document);
    EXPECT_GT(pieces.size(), 2U);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_TRUE(i == 0 || behind == 0 || pieces[i].front() == behind);
      EXPECT_TRUE(i + 1 == pieces.size() || before == 0 || pieces[i].back() == before);
      joined += pieces[i];
    }
    EXPECT_EQ(joined, document);
  };
  std::string lines, line;
  for (int i = 0; i < 100000; ++i) lines += "ab cd\nefg\n", line += "ab cde ";
  check_pieces(lines, '\n', 0);
  check_pieces(line, 0, ' ');
}

TEST(DataText, TrainsAModel) {
  const DataFolder folder;
  const auto model = load_model(test::golden("gpt2"));
  const Dataset data({.files = {{folder.write("x.txt", words(100))}}, .block = 16},
                     folder.tokenizer(), model->info());
  const Batch batch = data.batch({});
  EXPECT_GT(model->loss(batch.input, batch.labels).to_vector<float>()[0], 0);
}

TEST(DataText, SaysWhatIsWrong) {
  const DataFolder folder;
  const std::string one = folder.write("x.txt", words(10));
  EXPECT_ERROR("a block of 65 tokens is more than the 64 positions",
               Dataset({.files = {{one}}, .block = 65}, folder.tokenizer(), kDecoder));
  EXPECT_ERROR("block must be from 2",
               Dataset({.files = {{one}}, .block = 1}, folder.tokenizer(), kDecoder));
  EXPECT_ERROR("too few", Dataset({.files = {{folder.write("y.txt", " \n")}}, .block = 16},
                                  folder.tokenizer(), kDecoder));
  const auto list = [](const std::string& text) { return parse_json_texts(text, "x.json"); };
  EXPECT_ERROR("x.json: a list of texts is expected", list("{\"a\": 1}"));
  EXPECT_ERROR("behind 1 of them", list("[\"a\", 3]"));
  EXPECT_ERROR("behind 1 of them", list("[\"a\", [\"b\"]]"));
  EXPECT_ERROR("x.json: a list of texts is expected", list("\"a\""));
  EXPECT_ERROR("no JSON from byte 8", list("[\"a\",\"b"));
  EXPECT_ERROR("no JSON", list("[\"\xFF\"]"));
  EXPECT_ERROR("no JSON", list("[] 1"));
  EXPECT_TRUE(list("[]").empty());
  const Dataset data({.files = {{one}}, .block = 16}, folder.tokenizer(), kDecoder);
  EXPECT_ERROR("has no examples with texts", data.text(0));
  EXPECT_ERROR("has no examples", data.source(0));
}

DataOptions masked(const std::string& path) {
  return {.task = Task::masked_lm, .files = {{path}}, .block = 32, .batch_tokens = 256};
}

TEST(DataMasked, HidesSomeTokensAndAsksForThem) {
  const DataFolder folder;
  const Dataset data(masked(folder.write("x.txt", words(20000))), folder.tokenizer(true), kEncoder);
  std::int64_t text = 0, chosen = 0, hidden = 0, kept = 0, tokens = 0, read = 0;
  for (std::int64_t b = 0; b < data.batches(0); ++b) {
    const Batch batch = data.batch({0, b});
    const auto ids = rows_of(batch.input.ids), labels = rows_of(batch.labels);
    tokens += batch.tokens;
    read += batch.read;
    for (std::size_t r = 0; r < ids.size(); ++r) {
      ASSERT_EQ(ids[r].front(), 4);
      ASSERT_EQ(labels[r].front(), -100);
      const auto end = std::ranges::find(ids[r], 1);  // of the text, or of the document before it
      ASSERT_NE(end, ids[r].end());
      std::int64_t asked = 0;
      for (std::size_t i = 1; i < ids[r].size(); ++i) {
        if (labels[r][i] >= 5) ++asked, hidden += ids[r][i] == 3, kept += ids[r][i] == labels[r][i];
        EXPECT_TRUE(labels[r][i] == -100 || labels[r][i] >= 5);  // no separator
        EXPECT_TRUE(labels[r][i] >= 0 || ids[r][i] != 3);
        text += ids[r][i] >= 5 || ids[r][i] == 3;
      }
      EXPECT_GE(asked, 1);
      chosen += asked;
    }
  }
  EXPECT_EQ(tokens, chosen);
  EXPECT_EQ(text, 20000);
  EXPECT_NEAR(static_cast<double>(chosen), 3000, 160);
  EXPECT_NEAR(static_cast<double>(hidden), 0.8 * static_cast<double>(chosen), 80);
  // A tenth stays, and of the tenth that is drawn a 26th is the same letter.
  EXPECT_NEAR(static_cast<double>(kept), 0.104 * static_cast<double>(chosen), 60);
}

TEST(DataMasked, DrawsAnewInEveryEpochAndTheSameAgain) {
  const DataFolder folder;
  const std::string path = folder.write("x.txt", words(500));
  DataOptions options = masked(path);
  const Dataset data(options, folder.tokenizer(true), kEncoder);
  EXPECT_NE(shown(data, 0), shown(data, 1));
  EXPECT_EQ(shown(data, 1), shown(Dataset(options, folder.tokenizer(true), kEncoder), 1));
  options.shuffle = false;
  const Dataset fixed(options, folder.tokenizer(true), kEncoder);
  EXPECT_EQ(shown(fixed, 0), shown(fixed, 1));
  options.seed = 1;
  EXPECT_NE(shown(fixed, 0), shown(Dataset(options, folder.tokenizer(true), kEncoder), 0));
}

TEST(DataMasked, AsksForAtLeastOneTokenOfARow) {
  const DataFolder folder;
  DataOptions options = masked(folder.write("x.txt", words(300)));
  options.mask_rate = 1e-9;
  options.shuffle = false;
  const Dataset data(options, folder.tokenizer(true), kEncoder);
  std::int64_t rows = 0, tokens = 0;
  for (std::int64_t b = 0; b < data.batches(0); ++b) {
    const Batch batch = data.batch({0, b});
    rows += batch.labels.size(0);
    tokens += batch.tokens;
  }
  EXPECT_EQ(rows, 11);  // 300 letters and [SEP], 30 in each
  EXPECT_EQ(tokens, rows);
  const Batch last = data.batch({0, data.batches(0) - 1});
  ASSERT_TRUE(last.input.mask.defined());  // the [SEP] of the text alone, between two others
  EXPECT_EQ(last.input.mask.to_vector<std::uint8_t>().back(), 0);
  EXPECT_EQ(last.read, (last.input.ids.size(0) - 1) * 32 + 3);
}

TEST(DataMasked, NeedsAMaskAndRoom) {
  const DataFolder folder;
  DataOptions options = masked(folder.write("x.txt", words(30)));
  options.block = 2;
  EXPECT_ERROR("has no room", Dataset(options, folder.tokenizer(true), kEncoder));
  options.mask_rate = 0;
  EXPECT_ERROR("mask_rate", Dataset(options, folder.tokenizer(true), kEncoder));
  const Tokenizer bytes = train_tokenizer({options.files[0].path}, {.size = 257});
  options = masked(options.files[0].path);
  EXPECT_ERROR("[MASK]", Dataset(options, bytes, kEncoder));
  EXPECT_ERROR("needs an encoder", Dataset(options, folder.tokenizer(true), kDecoder));
}

DataOptions labelled(const std::string& path) {
  return {.task = Task::classification, .files = {{path}}, .shuffle = false};
}

TEST(DataLabelled, TakesNamesAndNumbersAndCutsLongTexts) {
  const DataFolder folder;
  DataOptions options = labelled(folder.write("x.tsv", "a b\tgood\nc d e f\tbad\na\t2\n\tbad\n"));
  options.max_source = 5;
  const Dataset data(options, folder.tokenizer(true), testing::classifier_info());
  EXPECT_EQ(data.examples(), 3);
  EXPECT_EQ(data.skipped(), 1);
  const Batch batch = data.batch({});
  EXPECT_EQ(batch.examples, (Ids{2, 0, 1}));
  EXPECT_EQ(batch.labels.to_vector<std::int64_t>(), (Ids{2, 1, 0}));
  EXPECT_EQ(rows_of(batch.input.ids),
            (std::vector<Ids>{{4, 5, 1, 0, 0}, {4, 5, 6, 1, 0}, {4, 7, 8, 9, 1}}));
  EXPECT_EQ(batch.tokens, 3);
  EXPECT_EQ(batch.read, 12);
  EXPECT_EQ(data.text(1).source, "c d e f");
}

TEST(DataLabelled, EndWithEosOnlyWhereTheTokenizerHasNoTemplate) {
  const DataFolder folder;
  DataOptions options = labelled(folder.write("x.tsv", "a b c d\t0\n"));
  options.max_source = 5;
  ModelInfo model = testing::classifier_info();
  model.eos_ids = {2};
  EXPECT_EQ(Dataset(options, folder.tokenizer(true), model).source(0), (Ids{4, 5, 6, 7, 1}));
  EXPECT_EQ(Dataset(options, folder.tokenizer(), model).source(0), (Ids{5, 6, 7, 8, 2}));
  options.max_source = 3;
  EXPECT_EQ(Dataset(options, folder.tokenizer(), model).source(0), (Ids{5, 6, 2}));
}

TEST(DataLabelled, TrainsAModel) {
  const DataFolder folder;
  const auto model = load_model(test::golden("bert-classifier"));
  const Dataset data(labelled(folder.write("x.tsv", "a b\tLABEL_1\nc d e f\t0\n")),
                     folder.tokenizer(true), model->info());
  const Batch batch = data.batch({});
  EXPECT_GT(model->loss(batch.input, batch.labels).to_vector<float>()[0], 0);
}

TEST(DataLabelled, SaysWhichLabelIsUnknownAndWhere) {
  const DataFolder folder;
  const auto error = [&](const std::string& part, const std::string& content) {
    EXPECT_ERROR(part, Dataset(labelled(folder.write("x.tsv", content)), folder.tokenizer(true),
                               testing::classifier_info()));
  };
  error("x.tsv:2: the model has no label 'great'; it has bad, good, fine", "a\tgood\nb\tgreat\n");
  error("x.tsv:1: the model has no label '3'", "a\t3\n");
  error("no label '-1'", "a\t-1\n");
  error("no label '1x'", "a\t1x\n");
  error("no label ''", "a\t\n");
  ModelInfo several = testing::classifier_info();
  several.multi_label = true;
  EXPECT_ERROR("a text has one label",
               Dataset(labelled(folder.write("x.tsv", "a\t0\n")), folder.tokenizer(true), several));
  ModelInfo number = testing::classifier_info();
  number.regression = true;
  EXPECT_ERROR("a label is one class of several",
               Dataset(labelled(folder.write("x.tsv", "a\t0\n")), folder.tokenizer(true), number));
  EXPECT_ERROR("num_labels",
               Dataset(labelled(folder.path("x.tsv")), folder.tokenizer(true), kEncoder));
}

}  // namespace
}  // namespace qkv
