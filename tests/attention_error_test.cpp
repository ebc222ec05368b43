// Bad input throws qkv::Error; the message names the argument, what it is and what was expected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "expect_error.h"
#include "qkv/error.h"
#include "qkv/ops.h"
#include "support/attention_check.h"
#include "support/values.h"

namespace qkv::test {
namespace {

using ::testing::HasSubstr;

// A call that is right until one thing is changed: B 2, H 4, Hk 2, Sq 5, Sk 7, D 8, Dv 6.
struct Call {
  Tensor q = Tensor::zeros({2, 4, 5, 8});
  Tensor k = Tensor::zeros({2, 2, 7, 8});
  Tensor v = Tensor::zeros({2, 2, 7, 6});
  AttentionOptions options{};

  // The same call with packed sequences of 5 and 4 rows.
  static Call packed() {
    Call call;
    call.q = Tensor::zeros({9, 4, 8});
    call.k = Tensor::zeros({9, 2, 8});
    call.v = Tensor::zeros({9, 2, 6});
    call.options.mask = Mask::packed(i32_tensor({0, 5, 9}));
    return call;
  }
};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

struct BadCall {
  const char* name;
  std::function<void(Call&)> change;
  std::vector<std::string> says;
};

// forward and backward refuse alike; so does attention_weights, where it takes the argument.
void check_bad_calls(const std::vector<BadCall>& calls, const Call& good, bool weights = false) {
  const AttentionForward forward = attention_forward(good.q, good.k, good.v, good.options);
  for (const BadCall& bad : calls) {
    SCOPED_TRACE(bad.name);
    Call call = good;
    bad.change(call);
    std::vector<std::string> messages{
        message_of([&] { attention_forward(call.q, call.k, call.v, call.options); }),
        message_of([&] { attention(call.q, call.k, call.v, call.options); }), message_of([&] {
          attention_backward(forward.out, call.q, call.k, call.v, forward, call.options);
        })};
    if (weights) {
      messages.push_back(message_of([&] { attention_weights(call.q, call.k, call.options); }));
    }
    for (const std::string& message : messages) {
      EXPECT_THAT(message, HasSubstr("attention"));
      for (const std::string& part : bad.says) EXPECT_THAT(message, HasSubstr(part));
    }
  }
}

TEST(AttentionError, Inputs) {
  check_bad_calls(
      {
          {"undefined", [](Call& c) { c.q = {}; }, {"q", "undefined"}},
          {"rank",
           [](Call& c) {
             c.q = Tensor::zeros({4, 5, 8});
           },
           {"q", "[4, 5, 8]", "[B, H, S, D]"}},
          {"k's rank",
           [](Call& c) {
             c.k = Tensor::zeros({7, 8});
           },
           {"k", "[7, 8]"}},
          {"dtype", [](Call& c) { c.q = to(c.q, DType::i32); }, {"q", "i32", "f32"}},
          {"k's dtype", [](Call& c) { c.k = to(c.k, DType::bf16); }, {"k", "bf16", "f32"}},
          {"head size",
           [](Call& c) {
             c.k = Tensor::zeros({2, 2, 7, 9});
           },
           {"[2, 4, 5, 8]", "[2, 2, 7, 9]", "head size"}},
          {"head count",
           [](Call& c) {
             c.k = Tensor::zeros({2, 3, 7, 8});
           },
           {"[2, 4, 5, 8]", "[2, 3, 7, 8]", "multiple"}},
          {"no key heads",
           [](Call& c) {
             c.k = Tensor::zeros({2, 0, 7, 8});
           },
           {"[2, 0, 7, 8]"}},
          {"batch",
           [](Call& c) {
             c.k = Tensor::zeros({3, 2, 7, 8});
           },
           {"[2, 4, 5, 8]", "[3, 2, 7, 8]", "batch"}},
          {"no head size",
           [](Call& c) {
             c.q = Tensor::zeros({2, 4, 5, 0}), c.k = Tensor::zeros({2, 2, 7, 0});
           },
           {"head size", "[2, 4, 5, 0]"}},
          {"large head size",
           [](Call& c) {
             c.q = Tensor::zeros({2, 4, 5, 1025}), c.k = Tensor::zeros({2, 2, 7, 1025});
           },
           {"head size", "[2, 4, 5, 1025]", "1024"}},
      },
      {}, true);
}

TEST(AttentionError, Values) {
  check_bad_calls(
      {
          {"v undefined", [](Call& c) { c.v = {}; }, {"v", "undefined"}},
          {"v's length",
           [](Call& c) {
             c.v = Tensor::zeros({2, 2, 8, 6});
           },
           {"v", "[2, 2, 8, 6]", "[2, 2, 7, 8]"}},
          {"v's heads",
           [](Call& c) {
             c.v = Tensor::zeros({2, 4, 7, 6});
           },
           {"v", "[2, 4, 7, 6]"}},
          {"v's dtype", [](Call& c) { c.v = to(c.v, DType::f16); }, {"v", "f16", "f32"}},
      },
      {});
}

TEST(AttentionError, Numbers) {
  check_bad_calls(
      {
          {"scale NaN", [](Call& c) { c.options.scale = kNan; }, {"scale", "nan", "finite"}},
          {"scale Inf", [](Call& c) { c.options.scale = kInf; }, {"scale", "inf", "finite"}},
          {"softcap", [](Call& c) { c.options.softcap = -1; }, {"softcap", "-1"}},
          {"softcap NaN", [](Call& c) { c.options.softcap = kNan; }, {"softcap", "nan"}},
          {"dropout 1", [](Call& c) { c.options.dropout = 1; }, {"dropout", "[0, 1)", "1"}},
          {"dropout below 0", [](Call& c) { c.options.dropout = -0.5f; }, {"dropout", "-0.5"}},
          {"dropout NaN", [](Call& c) { c.options.dropout = kNan; }, {"dropout", "nan"}},
          {"left", [](Call& c) { c.options.mask.left = -2; }, {"window", "-2"}},
          {"right", [](Call& c) { c.options.mask.right = -7; }, {"window", "-7"}},
          {"far window", [](Call& c) { c.options.mask.left = std::int64_t{1} << 60; }, {"window"}},
          {"far offset",
           [](Call& c) { c.options.mask.offset = -(std::int64_t{1} << 60); },
           {"offset"}},
      },
      {}, true);
  EXPECT_THAT(message_of([] { Mask::window(-2, 0); }), HasSubstr("-2"));
  EXPECT_THAT(message_of([] { Mask::window(0, -3); }), HasSubstr("-3"));
}

TEST(AttentionError, Lengths) {
  check_bad_calls(
      {
          {"lengths' count",
           [](Call& c) {
             c.options.mask.key_lengths = i32_tensor({1, 2, 3});
           },
           {"key_lengths", "[B]", "[3]"}},
          {"lengths' dtype",
           [](Call& c) { c.options.mask.key_lengths = Tensor::zeros({2}); },
           {"key_lengths", "i32", "f32"}},
          {"long key",
           [](Call& c) {
             c.options.mask.key_lengths = i32_tensor({7, 8});
           },
           {"key_lengths", "8", "7"}},
          {"negative key",
           [](Call& c) {
             c.options.mask.key_lengths = i32_tensor({-1, 7});
           },
           {"key_lengths", "-1"}},
          {"long query",
           [](Call& c) {
             c.options.mask.query_lengths = i32_tensor({6, 0});
           },
           {"query_lengths", "6", "5"}},
          {"offsets' count",
           [](Call& c) { c.options.mask.offset_per_sequence = i32_tensor({1}); },
           {"offset_per_sequence", "[1]"}},
      },
      {}, true);
}

TEST(AttentionError, Masks) {
  const auto booleans = [](const Shape& shape) { return Tensor::full(shape, 1, {DType::boolean}); };
  check_bad_calls(
      {
          {"allowed's dtype",
           [](Call& c) {
             c.options.mask.allowed_pairs = Tensor::zeros({5, 7});
           },
           {"allowed_pairs", "bool", "f32"}},
          {"allowed's shape",
           [&](Call& c) {
             c.options.mask.allowed_pairs = booleans({6, 7});
           },
           {"allowed_pairs", "[6, 7]", "[2, 4, 5, 7]"}},
          {"allowed's rank",
           [&](Call& c) {
             c.options.mask.allowed_pairs = booleans({1, 2, 4, 5, 7});
           },
           {"allowed_pairs", "[1, 2, 4, 5, 7]", "[2, 4, 5, 7]"}},
          {"global's dtype",
           [](Call& c) {
             c.options.mask.global_positions = i32_tensor({0, 1});
           },
           {"global_positions", "bool", "i32"}},
          {"global's shape",
           [&](Call& c) { c.options.mask.global_positions = booleans({5}); },
           {"global_positions", "[5]"}},
          {"key offsets alone",
           [](Call& c) {
             c.options.mask.key_offsets = i32_tensor({0, 7});
           },
           {"key_offsets", "query_offsets"}},
      },
      {}, true);
}

TEST(AttentionError, Packed) {
  const auto offsets = [](std::vector<std::int32_t> values) {
    return [values](Call& c) { c.options.mask.query_offsets = i32_tensor(values); };
  };
  check_bad_calls(
      {
          {"decreasing", offsets({0, 6, 5, 9}), {"query_offsets", "decrease", "5", "6"}},
          {"first", offsets({1, 5, 9}), {"query_offsets", "begin with 0"}},
          {"last", offsets({0, 5, 8}), {"query_offsets", "9"}},
          {"too far", offsets({0, 5, 10}), {"query_offsets", "9"}},
          {"none", offsets({}), {"query_offsets"}},
          {"dtype",
           [](Call& c) { c.options.mask.query_offsets = Tensor::zeros({3}); },
           {"query_offsets", "i32", "f32"}},
          {"other count",
           [](Call& c) {
             c.options.mask.key_offsets = i32_tensor({0, 2, 4, 9});
           },
           {"key_offsets"}},
          {"keys decreasing",
           [](Call& c) {
             c.options.mask.key_offsets = i32_tensor({0, 10, 9});
           },
           {"key_offsets", "decrease"}},
          {"rank",
           [](Call& c) {
             c.q = Tensor::zeros({1, 4, 9, 8});
           },
           {"q", "[1, 4, 9, 8]", "[T, H, D]"}},
          {"bias",
           [](Call& c) {
             c.options.bias = Bias::tensor(Tensor::zeros({9, 9}));
           },
           {"packed", "bias"}},
          {"allowed",
           [](Call& c) {
             c.options.mask.allowed_pairs = Tensor::full({9, 9}, 1, {DType::boolean});
           },
           {"packed", "allowed"}},
      },
      Call::packed());
  const Call good = Call::packed();
  EXPECT_THAT(message_of([&] { attention_weights(good.q, good.k, good.options); }),
              HasSubstr("packed"));
}

TEST(AttentionError, Biases) {
  const auto bias = [](const Shape& shape, DType dtype = DType::f32) {
    return [=](Call& c) { c.options.bias.values = Tensor::zeros(shape, {dtype}); };
  };
  check_bad_calls(
      {
          {"shape", bias({5, 8}), {"bias", "[5, 8]", "[2, 4, 5, 7]"}},
          {"heads", bias({2, 3, 5, 7}), {"bias", "[2, 3, 5, 7]", "[2, 4, 5, 7]"}},
          {"rank", bias({1, 1, 1, 5, 7}), {"bias", "[1, 1, 1, 5, 7]", "[2, 4, 5, 7]"}},
          {"dtype", bias({5, 7}, DType::i64), {"bias", "i64"}},
          {"two kinds",
           [](Call& c) {
             c.options.bias.values = Tensor::zeros({5, 7});
             c.options.bias.slopes = Tensor::zeros({4});
           },
           {"bias", "slopes"}},
          {"slopes' shape",
           [](Call& c) { c.options.bias.slopes = Tensor::zeros({3}); },
           {"slopes", "[3]", "[4]"}},
          {"slopes' batch",
           [](Call& c) {
             c.options.bias.slopes = Tensor::zeros({3, 4});
           },
           {"slopes", "[3, 4]"}},
          {"slopes' dtype",
           [](Call& c) { c.options.bias.slopes = Tensor::zeros({4}, {DType::bf16}); },
           {"slopes", "bf16", "f32"}},
          {"table's shape",
           [](Call& c) {
             c.options.bias.table = Tensor::zeros({32, 5});
           },
           {"table", "[32, 5]", "4"}},
          {"table's size",
           [](Call& c) {
             c.options.bias.table = Tensor::zeros({3, 4});
           },
           {"table", "3"}},
          {"table's distance",
           [](Call& c) {
             c.options.bias.table = Tensor::zeros({32, 4});
             c.options.bias.max_distance = 8;
           },
           {"max_distance", "8"}},
          {"sinks' shape",
           [](Call& c) { c.options.sinks = Tensor::zeros({2}); },
           {"sinks", "[2]", "[4]"}},
          {"sinks' dtype",
           [](Call& c) { c.options.sinks = Tensor::zeros({4}, {DType::f16}); },
           {"sinks", "f16", "f32"}},
      },
      {}, true);
}

TEST(AttentionError, Gradients) {
  const Call c;
  const AttentionForward forward = attention_forward(c.q, c.k, c.v, c.options);
  const auto message = [&](const AttentionOutputGrads& grads, const AttentionForward& f) {
    return message_of([&] { attention_backward(grads, c.q, c.k, c.v, f, c.options); });
  };
  const Tensor rows = Tensor::zeros({2, 4, 5});
  EXPECT_EQ(message(forward.out, forward), "(no error)");
  EXPECT_THAT(message(Tensor{}, forward), HasSubstr("gradient of out"));
  EXPECT_THAT(message(Tensor::zeros({2, 4, 5, 7}), forward),
              ::testing::AllOf(HasSubstr("[2, 4, 5, 7]"), HasSubstr("[2, 4, 5, 6]")));
  EXPECT_THAT(message(to(forward.out, DType::bf16), forward), HasSubstr("bf16"));
  EXPECT_THAT(message({forward.out, Tensor::zeros({2, 4, 6})}, forward),
              ::testing::AllOf(HasSubstr("lse"), HasSubstr("[2, 4, 6]"), HasSubstr("[2, 4, 5]")));
  EXPECT_THAT(message({forward.out, {}, rows}, forward),
              ::testing::AllOf(HasSubstr("entropy"), HasSubstr("Statistics::entropy")));
  EXPECT_THAT(message(forward.out, {}), HasSubstr("forward"));
  AttentionForward other = forward;
  other.lse = Tensor::zeros({2, 4, 7});
  EXPECT_THAT(message(forward.out, other), HasSubstr("[2, 4, 7]"));
}

TEST(AttentionError, Weights) {
  const Call c;
  const auto message = [&](const WeightsSelection& selection) {
    return message_of([&] { attention_weights(c.q, c.k, {}, selection); });
  };
  EXPECT_THAT(message({.heads = {4}}), ::testing::AllOf(HasSubstr("head 4"), HasSubstr("[0, 4)")));
  EXPECT_THAT(message({.rows = {0, -1}}),
              ::testing::AllOf(HasSubstr("row -1"), HasSubstr("[0, 5)")));
  EXPECT_THAT(message({.pool_rows = 0}), HasSubstr("pool_rows"));
  EXPECT_THAT(message({.pool_keys = -4}), HasSubstr("pool_keys"));
}

TEST(AttentionError, CombinedMasks) {
  const Tensor a = i32_tensor({1, 2}), b = i32_tensor({1, 2});
  EXPECT_THAT(message_of([&] { Mask::lengths(a) & Mask::lengths(b); }), HasSubstr("key_lengths"));
  EXPECT_EQ(message_of([&] { Mask::lengths(a) & Mask::lengths(a); }), "(no error)");
  EXPECT_THAT(message_of([&] { Mask::at_offset(1) & Mask::at_offset(2); }), HasSubstr("offset"));
  const Mask mask = Mask::window(5, -1) & Mask::window(3, 4) & Mask::causal(Align::top_left);
  EXPECT_EQ(mask.left, 3);
  EXPECT_EQ(mask.right, 4);
  EXPECT_TRUE(mask.causal_part);
  EXPECT_EQ(mask.align, Align::top_left);
}

TEST(AttentionError, Targets) {
  const KeepSettings keep;
  const std::string message = message_of([] { set_cpu_target("abacus"); });
  EXPECT_THAT(message, HasSubstr("abacus"));
  for (const std::string& target : cpu_targets()) EXPECT_THAT(message, HasSubstr(target));
}

TEST(AttentionStatistics, AStatisticThatWasNotAskedForSaysHow) {
  const Tensor x = Tensor::zeros({1, 2, 3, 4});
  const AttentionForward f = attention_forward(x, x, x, {.statistics = Statistics::max_logit});
  EXPECT_EQ(f.statistics.max_logit.to_vector<float>().size(), 2u);
  EXPECT_ERROR("entropy is computed where AttentionOptions::statistics has entropy",
               f.statistics.entropy.to_vector<float>());
  EXPECT_ERROR("top_index is computed where AttentionOptions::statistics has top_weight",
               f.statistics.top_index.to_vector<std::int32_t>());
  EXPECT_ERROR("score_var", f.statistics.score_var.device());
  EXPECT_ERROR("received", sum(f.statistics.received));
}

}  // namespace
}  // namespace qkv::test
