// Renders templates for a comparison with Python's Jinja. Each line of the input is a JSON object with `template`, `variables`
// and `now`; each line of the output one with `text`, or `raised` (by the template itself), or `error`.

#include <iostream>
#include <string>

#include "text/jinja_json.h"
#include "text/jinja_template.h"

namespace {

using namespace weft::jinja;

std::pair<std::string, std::string> rendered(Sandbox& box, const Value& request) {
  const Dict& members = request.as_dict();
  try {
    const Template parsed = Template::parse(members.find("template")->as_string());
    Template::Variables variables;
    for (const auto& [name, value] : members.find("variables")->as_dict().entries())
      variables.emplace_back(name.as_string(), value);
    return {"text", parsed.render(box, variables, members.find("now")->as_int())};
  } catch (const TemplateRaised& raised) {
    return {"raised", raised.what()};
  } catch (const TemplateError& error) {
    return {"error", error.what()};
  }
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    Sandbox box{Limits{}};
    const auto [kind, text] = rendered(box, from_json(box, line));
    Sandbox answers{Limits{}};
    const auto answer = std::make_shared<Dict>(answers);
    answer->set(answers, Value::text(answers, kind), Value::text(answers, text));
    std::cout << to_json(answers, Value::dict(answer), {.ensure_ascii = true}) << std::endl;
  }
}
