// JUnit and markdown of a report.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dsakit/harness/report.hpp"

namespace dsakit::harness {
namespace {

ReportLine line(const std::string& operation, const std::string& tensor, Verdict verdict) {
  ReportLine l;
  l.file = "x/a.h5";
  l.operation = operation;
  l.tensor = tensor;
  l.subject = "kernel";
  l.against = "reference";
  l.verdict = verdict;
  l.gate = "derived";
  l.elements = 640;
  l.mismatches = verdict == Verdict::fail ? 12 : 0;
  l.time_us = 1500;
  return l;
}

Report report(std::vector<ReportLine> lines) {
  Report r;
  r.verb = "replay";
  r.environment.version = "1.2.3";
  r.files.push_back({"x/a.h5", Verdict::fail, false, {}, {}, {}});
  r.lines = std::move(lines);
  return r;
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size())
    ++n;
  return n;
}

TEST(Junit, IsOneTestAnOperationWithItsWorstVerdict) {
  ReportLine waived = line("topk", "topk_indices", Verdict::waived);
  waived.reason = "until 2027-01-31: known";
  ReportLine later = line("index_cache_write", "index_cache", Verdict::pass);
  later.step = 1;
  const std::string xml =
      to_junit(report({line("index_logits_decode", "logits", Verdict::pass),
                       line("index_logits_decode", "logits.a", Verdict::fail),
                       line("index_logits_decode", "logits.b", Verdict::fail), waived,
                       line("sparse_attention", "", Verdict::error),
                       line("index_cache_write", "index_cache", Verdict::pass), later}));
  EXPECT_EQ(times(xml, "<testcase "), 5u) << xml;
  EXPECT_TRUE(holds(xml, "<testsuites name=\"dsakit replay\" tests=\"5\" failures=\"1\" "
                         "errors=\"1\" skipped=\"1\""))
      << xml;
  EXPECT_TRUE(holds(xml, "name=\"step 0 index_logits_decode\" time=\"0.001500\"")) << xml;
  EXPECT_EQ(times(xml, "<failure "), 2u) << "one a line that failed";
  EXPECT_TRUE(holds(xml, "message=\"fail: index_logits_decode step 0 logits.a: kernel against "
                         "reference\""))
      << xml;
  EXPECT_TRUE(holds(xml, "<skipped type=\"waived\"")) << xml;
  EXPECT_TRUE(holds(xml, "until 2027-01-31: known")) << xml;
}

TEST(Junit, EscapesMarkupAndWhatXmlCannotHold) {
  ReportLine l = line("topk", "topk_indices", Verdict::fail);
  l.hint = "a < b && \"c\" \x01 \xff";
  const std::string xml = to_junit(report({l}));
  EXPECT_TRUE(holds(xml, "a &lt; b &amp;&amp; &quot;c&quot; \\x01 \\xff")) << xml;
}

TEST(Junit, ABadFileIsATestInError) {
  Report r = report({});
  r.files[0].bad_input = true;
  r.files[0].reason = "x/a.h5: damaged";
  EXPECT_TRUE(holds(to_junit(r), "errors=\"1\"")) << to_junit(r);
  EXPECT_TRUE(holds(to_junit(r), "message=\"x/a.h5: damaged\"")) << to_junit(r);
}

TEST(Markdown, NamesWhatDidNotPassAndTellsTheFirstFailure) {
  ReportLine l = line("index_logits_decode", "logits.a|b", Verdict::fail);
  l.hint = "a ``` fence";
  const std::string text = to_markdown(report({line("topk", "topk_indices", Verdict::pass), l}));
  EXPECT_TRUE(holds(text, "### dsakit replay: FAIL\n")) << text;
  EXPECT_TRUE(holds(text, "2 comparisons, 1 passed, 1 not, 0 of them waived")) << text;
  EXPECT_TRUE(holds(text, "| logits.a\\|b |")) << text;
  EXPECT_TRUE(holds(text, "````\nindex_logits_decode step 0 logits.a|b: kernel against reference"))
      << text;
  EXPECT_FALSE(holds(text, "| topk |")) << text;
}

TEST(Markdown, FitsACommentWhateverHappened) {
  ReportLine l = line(std::string(3000, 'o'), std::string(3000, 't'), Verdict::fail);
  l.reason = l.hint = std::string(100000, 'x');
  Report r = report(std::vector<ReportLine>(500, l));
  r.files.assign(500, {std::string(3000, 'f'), Verdict::fail, false, {}, {}, {}});
  r.warnings.assign(500, std::string(3000, 'w'));
  EXPECT_LT(to_markdown(r).size(), 65536u);
}

TEST(Markdown, SaysWhyAFileIsBad) {
  Report bad = report({});
  bad.files[0] = {
      "x/a.h5", Verdict::error, true, "x/a.h5: found a | and " + std::string(300, 'b'), {}, {}};
  const std::string text = to_markdown(bad);
  EXPECT_TRUE(holds(text, "- error: x/a.h5: found a \\| and b")) << text;
  EXPECT_TRUE(holds(text, std::string(300, 'b'))) << text;
}

} // namespace
} // namespace dsakit::harness
