// YAML text -> Node, by the events of yaml-cpp; the only file that includes it. Refuses what is
// legal YAML but a trap in a config: duplicate keys, tags, merge keys, several documents.
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "config/node.h"
#include "config/utf8.h"
#include "cplm/base.h"

namespace cplm {
namespace {

constexpr size_t kMaxNodes = 100'000;  // aliases of aliases grow without bound
constexpr size_t kMaxDepth = 32;

size_t num_nodes(const Node& node) {
  size_t count = 1;
  for (const Node& item : node.items) count += num_nodes(item);
  for (const Entry& entry : node.entries) count += num_nodes(entry.value);
  return count;
}

class TreeBuilder : public YAML::EventHandler {
 public:
  // `num_lines` 0: places have no line.
  TreeBuilder(const std::string& origin, int num_lines)
      : origin_(std::make_shared<const std::string>(origin)), num_lines_(num_lines) {}

  Place place_of(const YAML::Mark& mark) const {
    return {origin_, std::clamp(mark.line + 1, std::min(1, num_lines_), num_lines_)};
  }
  Node take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (num_documents_++ > 0) {
      fail_at(place_of(mark), "expected one YAML document, found the start of a second one (---)");
    }
    root_.place = place_of(mark);
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(make_node(Node::Kind::kNull, place_of(mark)), anchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const bool quoted = tag == "!";  // yaml-cpp's tag of everything that is not a plain scalar
    if (!quoted) refuse_tag(mark, tag);
    Node node = make_node(Node::Kind::kScalar, place_of(mark));
    node.text = value;
    node.quoted = quoted;
    add(std::move(node), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end())
      fail_at(place_of(mark), "this alias (*) stands inside its own anchor (&)");
    count_nodes(mark, num_nodes(found->second));
    add(found->second, 0);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::kList);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::kMap);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Node node;
    YAML::anchor_t anchor = 0;
    bool has_key = false;
    std::string key;
    Place key_place;
    std::map<std::string, Place> keys_seen;
  };

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (tag.empty() || tag == "?") return;
    fail_at(place_of(mark), str("expected a plain value, found the YAML tag ",
                                quoted_for_message(tag), "; leave the tag out"));
  }

  void count_nodes(const YAML::Mark& mark, size_t count) {
    num_nodes_ += count;
    if (num_nodes_ <= kMaxNodes) return;
    fail_at(place_of(mark), str("expected at most ", kMaxNodes, " values, found more"));
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            Node::Kind kind) {
    refuse_tag(mark, tag);
    count_nodes(mark, 1);
    if (open_.size() >= kMaxDepth) {
      fail_at(place_of(mark), str("expected at most ", kMaxDepth, " levels, found deeper nesting"));
    }
    open_.emplace_back();
    open_.back().node = make_node(kind, place_of(mark));
    open_.back().anchor = anchor;
  }

  void close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    add(std::move(done.node), done.anchor);
  }

  void add(Node node, YAML::anchor_t anchor) {
    if (anchor != 0) anchors_[anchor] = node;
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == Node::Kind::kList) {
      parent.node.items.push_back(std::move(node));
    } else if (!parent.has_key) {
      take_key(parent, node);
    } else {
      // An empty value's mark is that of the next token, perhaps lines below.
      if (node.kind == Node::Kind::kNull) node.place = parent.key_place;
      parent.node.entries.push_back({parent.key, parent.key_place, std::move(node)});
      parent.has_key = false;
    }
  }

  void take_key(Open& parent, const Node& node) {
    if (node.kind != Node::Kind::kScalar) {
      fail_at(node.place, str("expected a key, found ", describe(node)));
    }
    if (node.text == "<<" && !node.quoted) {
      fail_at(node.place, "merge keys (<<) are not supported; use include, or write the keys out");
    }
    const auto [first, fresh] = parent.keys_seen.emplace(node.text, node.place);
    if (!fresh) {
      fail_at(node.place, str("duplicate key ", quoted_for_message(node.text), ", first given at ",
                              first->second.text(), "; keep one"));
    }
    parent.has_key = true;
    parent.key = node.text;
    parent.key_place = node.place;
  }

  std::shared_ptr<const std::string> origin_;
  int num_lines_;
  Node root_;
  int num_documents_ = 0;
  size_t num_nodes_ = 0;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, Node> anchors_;
};

// What the parser would misread or report obscurely, found line by line.
void check_text(std::string_view yaml, const Place& whole) {
  if (yaml.size() > kMaxConfigBytes) {
    fail_at(whole,
            str("expected a config of at most ", kMaxConfigBytes, " bytes, found ", yaml.size()));
  }
  Place place = whole;
  for (size_t i = 0, line_start = 0; i < yaml.size();) {
    const Utf8Char next = read_utf8(yaml.substr(i));
    if (next.size_bytes == 0) {
      fail_at(place, str("expected UTF-8 text, found byte ", i - line_start + 1,
                         " of the line, which is not"));
    }
    const bool control = next.code_point < 0x20 || next.code_point == 0x7f;
    if (control && yaml[i] != '\n' && yaml[i] != '\r' && yaml[i] != '\t') {
      fail_at(place, str("expected text, found control character ", next.code_point));
    }
    const bool indenting = yaml.find_first_not_of(' ', line_start) == i;
    if (yaml[i] == '\t' && indenting && whole.line > 0) {
      fail_at(place, "expected spaces as indentation, found a tab");
    }
    i += next.size_bytes;
    if (yaml[i - 1] == '\n') {
      line_start = i;
      if (whole.line > 0) ++place.line;
    }
  }
}

// yaml-cpp's words, with plainer ones for what happens most.
std::string explained(const std::string& message) {
  const std::pair<const char*, const char*> causes[] = {
      {"document indicator in scalar", "a quoted text has no closing quote"},
      {"end of map not found", "expected \"key: value\", found something else"},
      {"illegal map value",
       "a colon is missing above, a text with \": \" needs quotes, or the "
       "indentation is off"},
      {"anchor", "quote text that starts with * or &"}};  // a glob such as *.h5 is an alias
  for (const auto& [part, cause] : causes) {
    if (message.find(part) != std::string::npos) return str(message, "; ", cause);
  }
  return message;
}

}  // namespace

Node parse_yaml(std::string_view yaml, const std::string& origin, bool count_lines) {
  const auto breaks = static_cast<int>(std::count(yaml.begin(), yaml.end(), '\n'));
  const int num_lines = breaks + (yaml.ends_with('\n') ? 0 : 1);
  TreeBuilder builder(origin, count_lines ? num_lines : 0);
  check_text(yaml, builder.place_of({}));
  // At the end of its input yaml-cpp takes a quoted text without its closing quote, and a key
  // without its colon, for whole ones: a comment and the mark of a document's end follow instead.
  std::istringstream stream{std::string(yaml) + "\n#\n...\n"};
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    fail_at(builder.place_of(error.mark), str("YAML syntax: ", explained(error.msg)));
  }
  Node root = builder.take_root();
  if (root.kind == Node::Kind::kNull) root.place = builder.place_of({});
  return root;
}

}  // namespace cplm
