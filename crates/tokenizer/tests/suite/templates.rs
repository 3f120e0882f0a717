//! Templates beside what jinja2 in transformers makes of them.

use std::time::{Duration, SystemTime};

use fercuda_tokenizer::{ChatRequest, ChatTemplate, ChatValue, TokenizerError};

use crate::support::reference;

fn text<'a>(case: &'a ChatValue, name: &str) -> Option<&'a str> {
    match case.get(name) {
        Some(ChatValue::Text(text)) => Some(text),
        _ => None,
    }
}

fn rendered(template: &str, request: &ChatRequest) -> Result<String, TokenizerError> {
    let template = ChatTemplate::with_tokens(template, Vec::new(), Vec::new())?;
    Ok(template.render(request)?.text().to_owned())
}

#[test]
fn expressions_render_as_in_transformers() {
    let file = std::fs::read_to_string(reference("expressions.json")).unwrap();
    let ChatValue::List(cases) = ChatValue::from_json(&file).unwrap() else {
        panic!("no list");
    };
    assert!(cases.len() >= 90);
    for case in cases {
        let source = text(&case, "template").unwrap();
        let Some(ChatValue::Object(variables)) = case.get("variables").cloned() else {
            panic!("{source}: no variables");
        };
        let request = ChatRequest {
            variables,
            ..ChatRequest::new(Vec::new())
        };
        match (rendered(source, &request), text(&case, "text")) {
            (Ok(is), Some(wanted)) => assert_eq!(is, wanted, "{source}"),
            (Err(_), None) => {}
            (is, wanted) => panic!("{source}: {is:?}, not {wanted:?}"),
        }
    }
}

#[test]
fn absent_is_absent_and_reasoning_has_its_names() {
    let message = ChatValue::object([
        ("role", "assistant".into()),
        ("content", ChatValue::Null),
        ("reasoning", "why".into()),
    ]);
    let request = ChatRequest::new(vec![message]);
    let source = "{{ 'content' in messages[0] }} {{ messages[0].thinking }} \
        {{ messages[0].reasoning_content }} {{ tools is none }} {{ documents is defined }} \
        {{ bos_token is defined }} {{ messages[0]|tojson }}";
    let wanted = "False why why True True False {\"thinking\": \"why\", \"role\": \"assistant\", \
        \"reasoning\": \"why\", \"reasoning_content\": \"why\"}";
    assert_eq!(rendered(source, &request).unwrap(), wanted);
}

#[test]
fn dates_are_those_of_the_request() {
    let mut request = ChatRequest::new(Vec::new());
    request.now = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_209_861));
    let source = "{{ strftime_now('%Y-%m-%d %H:%M:%S %d %B %b %A %a %j %-d %I %p %% %y') }}";
    let wanted = "2024-02-29 12:31:01 29 February Feb Thursday Thu 060 29 12 PM % 24";
    assert_eq!(rendered(source, &request).unwrap(), wanted);
}

#[test]
fn errors_name_the_line() {
    let request = ChatRequest::new(Vec::new());
    let cases = [
        (
            "a\n{{ raise_exception('roles must alternate') }}",
            2,
            "roles must alternate",
        ),
        ("a\nb\n{% if %}", 3, ""),
        ("\n\n\n{{ nothing.at.all }}", 4, "undefined"),
        ("{{ 'a'.nope() }}", 1, "nope"),
        ("\n{% if \u{e9}", 2, ""),
        ("\n\n{{ '\u{1f600}", 3, ""),
        ("\n{{ '\u{e9}}", 2, ""),
    ];
    for (source, wanted, said) in cases {
        match rendered(source, &request) {
            Err(error @ TokenizerError::Template { line, .. }) => {
                assert_eq!(line, wanted, "{error}");
                assert!(error.to_string().contains(said), "{error}");
            }
            other => panic!("{source}: {other:?}"),
        }
    }
}

#[test]
fn endless_templates_end() {
    let request = ChatRequest::new(Vec::new());
    let sources = [
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}\
            {% endfor %}{{ ns.x|length }}",
        "{{ 'a' * 99999999999 }}",
        "{{ 'a'.center(99999999999) }}",
        "{{ '%999999999s' % 'a' }}{{ '%*d' % (999999999, 1) }}",
        "{{ '{:>999999999}'.format('a') }}",
        "{{ '{:>{}}'.format('a', 999999999) }}",
        "{{ '%999999999s'|format('a') }}",
        "{{ 'a\n'|indent(999999999) }}",
        "{% set x = range(9999)|list %}{{ (x * 9999)|length }}",
        "{{ ('ab' * 9999).replace('', 'x' * 9999)|length }}",
        "{{ [1]|tojson(indent=999999999) }}",
    ];
    for source in sources {
        let result = rendered(source, &request);
        assert!(
            result.as_ref().is_ok_and(|it| it.len() < 1 << 20) || result.is_err(),
            "{source}"
        );
    }
}

/// Each is a little beyond a limit of this crate, and harmless without it.
#[test]
fn templates_beyond_a_limit_are_refused() {
    let request = ChatRequest::new(Vec::new());
    let levels = "{% set ns = namespace(s=[]) %}{% for i in range(250) %}{% set ns.s = [ns.s] %}\
        {% endfor %}{{ ns.s|length }}";
    let doubled = "{% set ns = namespace(s=[1, 2]) %}{% for i in range(20) %}\
        {% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s|length }}";
    let cases = [
        ("x".repeat(262_145), 1, "262145 bytes"),
        (
            format!("a\n{{{{ {}1 }}}}", "not ".repeat(2000)),
            2,
            "more tokens than 2000",
        ),
        (
            format!("{{{{ 1{} }}}}", ".a".repeat(1001)),
            1,
            "more tokens than 2000",
        ),
        (
            format!("{{% if {}1 %}}{{% endif %}}", "1 +".repeat(1000)),
            1,
            "more tokens",
        ),
        (
            format!("{{{{ {}1{} }}}}", "(".repeat(33), ")".repeat(33)),
            1,
            "more brackets",
        ),
        (
            format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(1001)),
            1,
            "elif",
        ),
        (levels.to_owned(), 1, "more than 200 levels"),
        (doubled.to_owned(), 1, "a list of more than 1048576 items"),
        (
            "{% set ns = namespace() %}{% set ns.x = ns %}".to_owned(),
            1,
            "a namespace in",
        ),
        (
            "{% set ns = namespace() %}\n{% set x = [ns] %}".to_owned(),
            2,
            "a namespace in",
        ),
        (
            "{% set a = namespace() %}{% set b = namespace(a=a) %}".to_owned(),
            1,
            "a namespace in",
        ),
    ];
    for (source, wanted, said) in cases {
        match rendered(&source, &request) {
            Err(error @ TokenizerError::Template { line, .. }) => {
                assert_eq!(line, wanted, "{error}");
                assert!(error.to_string().contains(said), "{error}");
            }
            other => panic!("{}: {other:?}", &source[..source.len().min(80)]),
        }
    }
}

#[test]
fn templates_of_the_largest_size_take_no_quadratic_time() {
    let request = ChatRequest::new(Vec::new());
    let begin = std::time::Instant::now();
    for tag in [
        "{{1}}",
        "{#a#}",
        "{% if 1 %}{% endif %}",
        "{ %",
        "{{ 'a' ~ 'b' }}\n",
        "{{ 1 + 1 }}",
    ] {
        let source = tag.repeat(262_144 / tag.len());
        rendered(&source, &request).unwrap();
    }
    // That of a second, in a build that is not optimised, with others beside it.
    assert!(
        begin.elapsed() < Duration::from_secs(40),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn sums_and_assigned_values_are_those_of_python() {
    let request = ChatRequest::new(vec![ChatValue::message("user", "Hi")]);
    let cases = [
        (
            "{{ 1 + 2 - 3 + 4.5 }}|{{ 'a' + 'b' ~ 1 + 'c' }}",
            "4.5|ab1c",
        ),
        (
            "{{ [1] + [2, 3] + messages|map(attribute='role')|list }}",
            "[1, 2, 3, 'user']",
        ),
        ("{{ ([1] + [2])[0 + 1] }}{{ (1, 2) + (3,) }}", "2(1, 2, 3)"),
        (
            "{% set x = messages[0:] + [] %}{{ x|length }}{{ x is sequence }}",
            "1True",
        ),
        ("{% set a, b = 1, 'x' %}{{ b * (a + 1) }}", "xx"),
        (
            "{% set ns = namespace(n=0, l=[]) %}{% for i in range(3) if i + 1 > 1 %}\
            {% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.n }}{{ ns.l }}",
            "3[1, 2]",
        ),
        (
            "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a + ns.b }}",
            "3",
        ),
        (
            "{% macro f(a, b=1 + 2) %}{{ a + b }}{% endmacro %}{{ f(1) + f(1, b=4) }}",
            "45",
        ),
        (
            "{% set x = 'a' if not 1 + 1 == 2 else 'b' + 'c' %}{{ x }}",
            "bc",
        ),
        ("{% for x in [1] + [2] %}{{ x }}{% endfor %}", "12"),
        (
            "{{ 'a\n\nb'|indent(1, true) }}|{{ 'a\n\nb'|indent(1, false, true) }}",
            " a\n\n b|a\n \n b",
        ),
    ];
    for (source, wanted) in cases {
        assert_eq!(rendered(source, &request).unwrap(), wanted, "{source}");
    }
    for source in ["{{ 1 + 'a' }}", "{{ [1] + 'a' }}", "{{ [1] + (2,) }}"] {
        assert!(rendered(source, &request).is_err(), "{source}");
    }
}
