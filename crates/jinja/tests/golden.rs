//! Templates render exactly like Jinja2 in Python as configured by `transformers`, and fail where it raises an error.

use plimsoll_jinja::{Error, ErrorKind, Host, Limits, Template, Value};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Made by scripts/golden_jinja.py.
const GOLDEN: &str = include_str!("golden/templates.json");

#[derive(Deserialize)]
struct Golden {
    /// The variables of templates.
    contexts: BTreeMap<String, Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    context: String,
    /// `None` if Jinja2 raises an error.
    text: Option<String>,
}

fn rendered(template: &str, context: &Value) -> Result<String, Error> {
    let strftime_now = |format: &str| match format {
        "%d %b %Y" => Ok("26 Jul 2024".to_owned()),
        "%Y-%m-%d" => Ok("2024-07-26".to_owned()),
        _ => Err(format!("strftime_now does not know {format}")),
    };
    let host = Host { strftime_now: &strftime_now, marks: None, limits: Limits { steps: 200_000 } };
    let variables = context.as_dict().expect("names with values").iter();
    let variables: Vec<(&str, Value)> =
        variables.map(|(name, value)| (name.as_str().expect("a name"), value.clone())).collect();
    Template::new(template)?.render(&variables, &host)
}

#[test]
fn templates_render_what_jinja2_renders() {
    let golden: Golden = serde_json::from_str(GOLDEN).unwrap();
    let mut problems = Vec::new();
    for Case { template, context, text } in &golden.cases {
        let found = rendered(template, &golden.contexts[context]);
        if found.as_ref().ok() != text.as_ref() {
            problems.push(format!("{template}\n  Jinja2: {text:?}\n  ours:   {found:?}"));
        }
    }
    assert!(golden.cases.len() > 1300, "{} templates", golden.cases.len());
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

/// Jinja2 returns a value for each of these.
#[test]
fn unsupported_features_are_refused_by_name() {
    let context = Value::dict([("d", Value::dict([("a", 1_usize), ("b", 2)]))]);
    for (template, name) in [
        ("{{ 2 ** 127 }}", "an integer beyond 127 bits"),
        ("{{ 170141183460469231731687303715884105728 }}", "an integer beyond 127 bits"),
        ("{{ 9007199254740993 / 3 }}", "a division of integers beyond 53 bits"),
        ("{{ (-8) ** 0.5 }}", "a complex number"),
        ("{{ '\\N{BULLET}' }}", "`\\N` in a text"),
        ("{{ é }}", "the name `é`"),
        ("{{ aé }}", "the name `aé`"),
        ("{{ self }}", "`self`"),
        ("{{ lipsum() }}", "`lipsum`"),
        ("{{ [1] | random }}", "`random`"),
        ("{{ 'a.org' | urlize }}", "`urlize`"),
        ("{{ d | pprint }}", "`pprint`"),
        ("{{ 'a-b' | wordwrap(2) }}", "`wordwrap` of a text with hyphens"),
        ("{{ '&eacute;' | striptags }}", "HTML entities"),
        ("{{ [0.1, 0.2, 0.3] | sum }}", "a sum of floats"),
        ("{{ 'a'.encode() }}", "`encode` of a str"),
        ("{{ 'a'.translate({}) }}", "`translate` of a str"),
        ("{{ (1).bit_length() }}", "`bit_length` of a int"),
        ("{{ d.keys() == d.keys() }}", "a comparison of"),
        ("{{ d.keys() - d.keys() }}", "a difference of"),
        ("{{ [1] | map('string') }}", "printing an iterator"),
        ("{{ range }}", "printing a function"),
        ("{{ cycler(1) }}", "printing a cycler"),
        ("{{ ('a' | safe) % 1 }}", "`%` of a text that `escape` or `safe` returned"),
        ("{{ ('a' | e).join(['b']) }}", "`join` of a text that `escape` or `safe` returned"),
        ("{{ 'ß'.title() }}", "the title case of `ß`"),
        ("{{ 'ß'.casefold() }}", "`casefold` beyond ASCII"),
        ("{{ '½'.isnumeric() }}", "`isnumeric` beyond ASCII"),
        ("{{ 1000 is sameas 1000 }}", "`is sameas`"),
        ("{{ '{:#.0f}'.format(1) }}", "`#` in a format of a float"),
        ("{{ strftime_now('%Q') }}", "strftime_now does not know %Q"),
        ("{% block a %}{% endblock %}", "`{% block %}`"),
        ("{% autoescape true %}{% endautoescape %}", "`{% autoescape %}`"),
    ] {
        let error = rendered(template, &context).expect_err(template);
        assert!(error.kind == ErrorKind::Unsupported && error.message.contains(name), "{template}: {error:?}");
    }
}

#[test]
fn errors_have_the_line_of_the_template() {
    for (template, problem) in [
        ("\n{{ a b }}", "unexpected `b`, expected `}}` (line 2 of the template)"),
        ("{{ a", "a tag is not closed (line 1 of the template)"),
        ("a\n\n{{ ) }}", "unexpected `)` (line 3 of the template)"),
        ("{% nope 'a' %}", "unknown statement `nope` (line 1 of the template)"),
        ("{{ 'a }}", "a text in quotes is not closed (line 1 of the template)"),
        (
            "{% for x in [1] %}\n{{ 1 +\n 'a' }}{% endfor %}",
            "`+` does not support a int and a str (line 2 of the template)",
        ),
        ("{{ a.b.c }}", "`a` is undefined (line 1 of the template)"),
        (
            "\n{% if 1 %}",
            "the template ends without `{% elif %}` or `{% else %}` or `{% endif %}` (line 2 of the template)",
        ),
    ] {
        assert_eq!(rendered(template, &Value::dict::<&str, Value>([])).unwrap_err().to_string(), problem, "{template}");
    }
}
