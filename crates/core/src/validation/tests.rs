use proptest::prelude::*;
use serde_json::json;

use super::*;

/// As the operator calls it: with the stack that it takes.
#[expect(clippy::disallowed_methods, reason = "the tests are the caller")]
fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
        thread.unwrap().join().unwrap()
    })
}

fn validate(validation: &Validation, new: &Data<'_>, old: Option<&Data<'_>>) -> Result<(), Invalid> {
    on_deep_stack(|| super::validate(validation, new, old))
}

fn check(validation: &Validation) -> Result<(), String> {
    on_deep_stack(|| validation.check())
}

fn data<'a>(values: &[(&'a str, &'a str)]) -> Data<'a> {
    Data(values.iter().map(|(key, value)| (*key, value.as_bytes())).collect())
}

fn parsing(parse: Parsing) -> Validation {
    Validation { parse, ..Validation::default() }
}

fn schema(key: &str, schema: Value) -> Validation {
    Validation { schemas: vec![KeySchema { key: key.to_owned(), schema }], ..Validation::default() }
}

fn rule(expression: &str) -> Validation {
    Validation { rules: vec![Rule { expression: expression.to_owned(), message: None }], ..Validation::default() }
}

/// The sentence, empty when valid.
fn verdict(validation: &Validation, new: &[(&str, &str)], old: Option<&[(&str, &str)]>) -> String {
    let result = validate(validation, &data(new), old.map(data).as_ref());
    result.map_or_else(|invalid| invalid.to_string(), |()| String::new())
}

#[test]
fn files_are_read_by_their_extension() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let (deep, too_deep) = (nested(60), nested(100_000));
    let many: String = (0..120_000).map(|_| "- 1\n- a\n").collect();
    let cases = [
        ("a.json", r#"{"a": [1, 2.5, null], "a": 1e99}"#, ""),
        ("a.json", &deep, ""),
        ("a.json", "{\n  \"a\": 1,\n}", "key a.json is not valid JSON: trailing comma at line 3 column 1"),
        ("a.json", "", "key a.json is not valid JSON: EOF while parsing a value at line 1 column 0"),
        ("a.json", &too_deep, "key a.json is not valid JSON: recursion limit exceeded at line 1 column 128"),
        ("a.yaml", "a: 1\n---\n? [b]\n: !Ref c\n--- .inf\n", ""),
        ("a.yaml", "", ""),
        ("a.yaml", &deep, ""),
        ("a.yaml", &many, ""),
        ("a.yml", "a: b: c", "key a.yml is not valid YAML: wrong syntax at line 1, column 5"),
        ("a.yaml", "a: 1\nb: 2\na: 3", ""),
        ("a.yaml", "a: 1\n---\nb: [", "key a.yaml is not valid YAML: wrong syntax at line 3, column 4"),
        ("a.yaml", &too_deep, "key a.yaml is not valid YAML: wrong syntax at line 1, column 256"),
        ("a.toml", "[a]\nb = 1979-05-27\n", ""),
        ("a.toml", "a = 1\nb = x", "key a.toml is not valid TOML: wrong syntax at line 2, column 5"),
        ("a.properties", "# c\na.b = c\\\n  d\n: \nx\n! e", ""),
        ("a.properties", "a=1\nb=\\u12x4", "key a.properties is not valid properties: malformed \\u escape at line 2"),
        ("a.properties", "b=\\u12", "key a.properties is not valid properties: malformed \\u escape at line 1"),
        ("a.txt", "{", ""),
        ("json", "{", ""),
    ];
    for (key, text, expected) in cases {
        assert_eq!(verdict(&parsing(Parsing::Always), &[(key, text)], None), expected, "{key}");
        assert_eq!(verdict(&parsing(Parsing::Off), &[(key, text)], None), "", "{key}");
    }
}

#[test]
fn binary_content_is_not_readable() {
    for key in ["a.json", "a.yaml", "a.toml", "a.properties"] {
        let content = Data(BTreeMap::from([(key, &[b' ', 0xff][..])]));
        let result = validate(&parsing(Parsing::Always), &content, None);
        assert!(result.unwrap_err().to_string().ends_with("it is not UTF-8 text from byte 2 on"), "{key}");
    }
}

#[test]
fn properties_are_read_as_java_does() {
    let cases = [
        ("a=1", "a", "1"),
        ("a : 1 ", "a", "1 "),
        ("a 1=2", "a", "1=2"),
        ("a\\ b\\==c\\td", "a b=", "c\td"),
        ("a=b\\\n   c\\\\\nd=e", "a", "bc\\"),
        ("a=\\u00e4\\uD83D\\uDE00é", "a", "ä😀é"),
        ("a", "a", ""),
    ];
    for (text, name, value) in cases {
        let documents = Format::Properties.documents(text.as_bytes()).unwrap();
        assert_eq!(documents[0][name], value, "{text}");
    }
}

#[test]
fn what_could_be_read_must_stay_readable() {
    let (good, bad): (&[_], &[_]) = (&[("a.yaml", "a: 1")], &[("a.yaml", "{{ x }}: {{")]);
    let keep = parsing(Parsing::KeepParsing);
    assert_eq!(verdict(&keep, bad, Some(good)), "key a.yaml is not valid YAML: wrong syntax at line 1, column 11");
    for old in [None, Some(bad), Some(&[][..])] {
        assert_eq!(verdict(&keep, bad, old), "");
        assert_ne!(verdict(&parsing(Parsing::Always), bad, old), "");
    }
    assert_eq!(verdict(&keep, good, Some(bad)), "");
    assert_eq!(verdict(&keep, &[], Some(good)), "");
}

#[test]
fn the_old_version_is_needed_only_when_the_verdict_depends_on_it() {
    let (good, bad) = (data(&[("a.json", "1")]), data(&[("a.json", "{")]));
    for (validation, for_good, for_bad) in [
        (parsing(Parsing::Off), false, false),
        (parsing(Parsing::KeepParsing), false, true),
        (parsing(Parsing::Always), false, false),
        (rule("true"), true, true),
    ] {
        assert_eq!((validation.needs_old(&good), validation.needs_old(&bad)), (for_good, for_bad), "{validation:?}");
    }
}

#[test]
fn a_mismatch_is_told_in_the_words_of_the_schema() {
    let server = json!({
        "type": "object",
        "required": ["host"],
        "additionalProperties": false,
        "properties": {
            "host": {"type": "string", "maxLength": 5, "pattern": "^[a-z]+$"},
            "port": {"$ref": "#/$defs/port"},
            "mode": {"enum": ["on", "off"]},
            "tags": {"type": ["array", "null"], "uniqueItems": true, "items": {"format": "ipv4"}},
            "names": {"patternProperties": {"^n-\\d+$": {"type": "integer"}}, "additionalProperties": false},
            "extra": {"additionalProperties": {"type": "integer"}},
            "either": {"oneOf": [{"minimum": 1}, {"minimum": 2}]},
        },
        "$defs": {"port": {"type": "integer", "minimum": 1, "maximum": 65535}},
    });
    let cases = [
        (json!({"host": "abc", "port": 80, "mode": "on", "tags": ["10.0.0.1"], "extra": {"x": 1}}), ""),
        (json!([]), "the value must be of type object"),
        (json!({}), "the value must have the property \"host\""),
        (json!({"host": "hunter"}), "/host must have at most 5 characters"),
        (json!({"host": "A"}), "/host must match the pattern ^[a-z]+$"),
        (json!({"host": "a", "port": 70000}), "/port must be at most 65535"),
        (json!({"host": "a", "mode": "hunter2"}), "/mode must be one of [\"on\",\"off\"]"),
        (json!({"host": "a", "tags": 1}), "/tags must be of type null or array"),
        (json!({"host": "a", "tags": ["10.0.0.1", "hunter2"]}), "/tags/1 must have the format ipv4"),
        (json!({"host": "a", "tags": ["10.0.0.1", "10.0.0.1"]}), "/tags must not have equal items"),
        (json!({"host": "a", "extra": {"hunter2": "x"}}), "/extra/* must be of type integer"),
        (json!({"host": "a", "names": {"n-1": 1}}), ""),
        (json!({"host": "a", "names": {"n-1": "hunter2"}}), "/names/* must be of type integer"),
        (json!({"host": "a", "names": {"hunter2": 1}}), "/names has a property that the schema does not know"),
        (json!({"host": "a", "either": 0}), "/either matches none of the schemas in /properties/either/oneOf"),
        (json!({"host": "a", "either": 3}), "/either matches more than one of the schemas in /properties/either/oneOf"),
        (
            json!({"host": "a", "hsot": "hunter2"}),
            "the value has a property that the schema does not know; it knows either, extra, host, mode, names, port, tags",
        ),
    ];
    let validation = schema("a.json", server);
    assert_eq!(check(&validation), Ok(()));
    for (content, expected) in cases {
        let sentence = verdict(&validation, &[("a.json", &content.to_string())], None);
        assert_eq!(sentence.trim_start_matches("key a.json does not match its schema: "), expected, "{content}");
    }
}

#[test]
fn a_schema_holds_for_every_format() {
    let number = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    for (key, good, bad) in [
        ("a.json", r#"{"a": 1}"#, r#"{"a": "x"}"#),
        ("a.yaml", "a: 1\n---\na: 2", "a: yes"),
        ("a.toml", "a = 1", "a = 1979-05-27"),
        ("plain", "a: 1", "a: x"),
    ] {
        let validation = schema(key, number.clone());
        assert_eq!(verdict(&validation, &[(key, good)], None), "");
        let expected = format!("key {key} does not match its schema: /a must be of type integer");
        assert_eq!(verdict(&validation, &[(key, bad)], None), expected);
    }
    assert_eq!(
        verdict(&schema("a.yaml", number.clone()), &[("a.yaml", "a: 1\n---\na: x")], None),
        "key a.yaml does not match its schema: document 2: /a must be of type integer"
    );
    let text = schema("a.properties", json!({"properties": {"a": {"const": "1"}}}));
    assert_eq!(verdict(&text, &[("a.properties", "a=1")], None), "");
    assert_ne!(verdict(&text, &[("a.properties", "a=2")], None), "");
    let level = schema("LEVEL", json!({"enum": ["info", "warn", 3, null]}));
    for (value, is_valid) in [("info", true), ("3", true), ("", true), ("debug", false), ("\"3\"", false)] {
        assert_eq!(verdict(&level, &[("LEVEL", value)], None).is_empty(), is_valid, "{value}");
    }
}

#[test]
fn a_key_with_a_schema_must_be_there_and_readable() {
    let validation = schema("a.json", json!(true)).and(&parsing(Parsing::Off));
    assert_eq!(verdict(&validation, &[], None), "key a.json is missing, and the policy has a schema for it");
    let unreadable = "key a.json is not valid JSON: EOF while parsing an object at line 1 column 1";
    assert_eq!(verdict(&validation, &[("a.json", "{")], None), unreadable);
    let complex = "key a.yaml is not valid YAML: what stands at line 1, column 1 cannot be compared with a schema";
    assert_eq!(verdict(&schema("a.yaml", json!(true)), &[("a.yaml", "[a]: b")], None), complex);
}

#[test]
fn an_unsound_schema_is_named() {
    let chain: serde_json::Map<String, Value> = (0..200)
        .map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)})))
        .chain([("d200".to_owned(), json!(true))])
        .collect();
    let too_large = json!({"description": "x".repeat(300_000)});
    for (unsound, expected) in [
        (json!("x"), "is not of types"),
        (json!({"type": "strng"}), "\"strng\" is not valid"),
        (json!({"pattern": "("}), "the pattern ( is malformed"),
        (json!({"pattern": "(?=a)b"}), "looks around"),
        (json!({"pattern": "((a{100}){100}){100}"}), "too large"),
        (json!({"patternProperties": {"(x{1,100}){1,15}y": true}}), "too large"),
        (
            json!({"items": (0..201).map(|_| json!({"pattern": "a"})).collect::<Vec<_>>(), "$schema": "http://json-schema.org/draft-07/schema#"}),
            "more than 200 patterns",
        ),
        (json!({"$ref": "https://example.com/x.json"}), "reference https://example.com/x.json leads nowhere"),
        (json!({"$ref": "file:///etc/passwd"}), "leads nowhere"),
        (json!({"$ref": "https://json-schema.org/draft/2020-12/schema"}), "leads nowhere"),
        (json!({"items": {"$ref": "#/$defs/x"}}), "reference #/$defs/x leads nowhere"),
        (json!({"$schema": "https://example.com/x"}), "Unknown meta-schema"),
        (json!({"properties": {"a": {"$id": "https://example.com/a"}}}), "$id is supported at the top"),
        (json!({"$dynamicRef": "#a"}), "$dynamicRef is not supported"),
        (json!({"$ref": "#"}), "refers to itself without going deeper"),
        (json!({"allOf": [{"not": {"$ref": "#"}}]}), "refers to itself without going deeper"),
        (json!({"$ref": "#/$defs/d0", "$defs": chain}), "more than 100 references"),
        (too_large, "at most 262144 are allowed"),
    ] {
        let validation = schema("a.json", unsound.clone());
        let fault = check(&validation).unwrap_err();
        assert!(fault.starts_with("the schema for key a.json: ") && fault.contains(expected), "{fault}");
        let sentence = verdict(&validation, &[("a.json", "1")], None);
        assert_eq!(sentence, format!("the policy's validation cannot be used: {fault}"));
    }
}

#[test]
fn a_schema_may_refer_to_itself() {
    let tree = json!({"required": ["value"], "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "id": {"type": "string"}}});
    let mut content = json!({"value": 1});
    for _ in 0..30 {
        content = json!({"value": 1, "left": content, "right": {"value": 2}});
    }
    let validation = schema("a.json", tree);
    assert_eq!(verdict(&validation, &[("a.json", &content.to_string())], None), "");
    content["left"]["left"]["right"] = json!({});
    let expected = "key a.json does not match its schema: /left/left/right must have the property \"value\"";
    assert_eq!(verdict(&validation, &[("a.json", &content.to_string())], None), expected);
}

#[test]
fn a_comparison_that_would_not_end_is_not_begun() {
    let doubling = json!({"type": "array", "anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]});
    let validation = schema("a.json", doubling);
    let nested = |depth: usize| "[".repeat(depth) + "1" + &"]".repeat(depth);
    assert_eq!(check(&validation), Ok(()));
    assert!(verdict(&validation, &[("a.json", &nested(4))], None).contains("matches none of the schemas"));
    assert!(verdict(&validation, &[("a.json", &nested(60))], None).contains("would take too long"));
}

#[test]
fn rules_see_old_and_new() {
    let new: &[_] = &[("app.yaml", "x: 1"), ("level", "info"), ("replicas", "3"), ("other", "")];
    let old: &[_] = &[("level", "debug"), ("replicas", "2")];
    let cases = [
        ("data.level == 'info' && oldData.level == 'debug'", ""),
        ("data['app.yaml'].startsWith('x') && 'level' in data && !has(data.none)", ""),
        ("data.all(k, size(data[k]) < 10) && data.exists(k, k.endsWith('.yaml'))", ""),
        ("int(data.replicas) - int(oldData.replicas) <= 1", ""),
        ("data.filter(k, k in oldData).map(k, data[k]).size() == 2", ""),
        ("data.level.matches('^(info|warn)$') && data.level.contains('nf')", ""),
        ("data.level in ['info', 'warn'] ? true : false", ""),
        ("data.exists_one(k, data[k] == '')", ""),
        ("{'a': 1}.a == 1 && [1, 2][0] == 1 && max(1, 2) == 2 && -1 < 0 && 7 % 2 == 1 && double('1.5') > 1.0", ""),
        ("data.level == 'warn'", "rule `data.level == 'warn'` is not met: it is false for this content"),
        ("data.level", "rule `data.level` cannot be evaluated: its result is neither true nor false"),
        (
            "data.none == ''",
            "rule `data.none == ''` cannot be evaluated: there is no key none; has() and `in` ask whether there is one",
        ),
        (
            "data[data.level] == ''",
            "rule `data[data.level] == ''` cannot be evaluated: it looks up a key that is not there",
        ),
        ("int(data.level) > 0", "rule `int(data.level) > 0` cannot be evaluated: int() cannot use what it was given"),
        ("1 / 0 == 1", "rule `1 / 0 == 1` cannot be evaluated: it divides by zero"),
    ];
    for (expression, expected) in cases {
        assert_eq!(check(&rule(expression)), Ok(()), "{expression}");
        assert_eq!(verdict(&rule(expression), new, Some(old)), expected);
    }
    assert_eq!(verdict(&rule("oldData == {}"), new, None), "");
    assert!(verdict(&rule("data.level - 1 == 1"), new, None).contains("does not fit the type"));
}

#[test]
fn a_rule_may_say_why() {
    let message = Some("the level must be known".to_owned());
    let validation = Validation {
        rules: vec![Rule { expression: "data.level\n == 'x'".to_owned(), message }],
        ..Validation::default()
    };
    let expected = "rule `data.level == 'x'` is not met: the level must be known";
    assert_eq!(verdict(&validation, &[("level", "y")], None), expected);
}

#[test]
fn rules_do_not_see_binary_values() {
    let content = Data(BTreeMap::from([("text", &b"x"[..]), ("binary", &[0xff][..])]));
    assert_eq!(validate(&rule("data == {'text': 'x'}"), &content, None), Ok(()));
}

#[test]
fn an_unsound_rule_is_named() {
    for (expression, expected) in [
        ("", "rule ``: line 1, column 1: "),
        ("data.level ==", "column"),
        ("dta.level == ''", "dta is not known"),
        ("data.all(k, kk == '')", "kk is not known"),
        ("data.level.split(',') == []", "split is not known"),
        ("Level{a: 1} == 1", "objects of a type are not supported"),
        ("data.level.matches('(')", "the pattern ( is malformed"),
        ("data.level.matches('((a{100}){100}){100}')", "malformed, too large"),
        (&"!(".repeat(5_000), "at most 400 are allowed"),
        (&"1 in ".repeat(2_000), "at most 400 are allowed"),
        (&"x".repeat(10_001), "at most 10000 are allowed"),
        ("-9223372036854775809 == 0", "column"),
    ] {
        let fault = check(&rule(expression)).unwrap_err();
        assert!(fault.starts_with("rule `") && fault.contains(expected), "{fault}");
        assert_ne!(verdict(&rule(expression), &[("level", "")], None), "", "{expression}");
    }
}

#[test]
fn the_deepest_rule_fits_on_the_stack() {
    let nested =
        |open: &str, middle: &str, close: &str, levels: usize| open.repeat(levels) + middle + &close.repeat(levels);
    for expression in [
        nested("(", "true", ")", 200),
        nested("[", "", "]", 200) + "== []",
        nested("{1:", "1", "}", 130) + "== {}",
        nested("size(", "data", ")", 200) + "== 0",
        nested("!(", "true", ")", 130),
        nested("[].all(x,", "true", ")", 75),
        vec!["1"; 395].join("+") + " > 0",
        "data".to_owned() + &".a".repeat(395),
        "data".to_owned() + &".map(k,k)".repeat(95) + "== []",
        "(".repeat(400),
        "[".repeat(400),
        "- ".repeat(400) + "1",
        "true?1:".repeat(190) + "1",
    ] {
        // What matters is that both return.
        let _ = check(&rule(&expression));
        verdict(&rule(&expression), &[("a", "x")], None);
    }
}

#[test]
fn a_rule_that_would_not_end_is_not_begun() {
    let keys: Vec<String> = (0..1_000).map(|index| format!("key-{index}")).collect();
    let content: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "some value")).collect();
    for expression in [
        "data.all(k, data[k] != '' && k.matches('^key-[0-9]+$'))",
        "data.all(k, k in data || k in oldData)",
        "data.map(k, data[k]).all(value, value == 'some value')",
    ] {
        assert_eq!(verdict(&rule(expression), &content, None), "");
    }
    assert_eq!(verdict(&rule("data.all(a, data.exists(b, a == b))"), &content[..300], None), "");
    for expression in [
        "data.all(a, data.all(b, data.all(c, true)))",
        "data.map(a, data.map(b, data[b])).size() == 0",
        "data.all(k, k.matches(data[k]))",
    ] {
        assert!(verdict(&rule(expression), &content, None).contains("would take too long"), "{expression}");
    }
    let large = "x".repeat(1_000_000);
    let doubled = vec!["data.a"; 150].join("+") + " == ''";
    assert!(verdict(&rule(&doubled), &[("a", &large)], None).contains("would take too long"));
    let plain = "!data.a.contains('y') && data.a.size() > 10 && !data.a.matches('[0-9]') && data.all(k, data[k] != '')";
    assert_eq!(verdict(&rule(plain), &[("a", &large)], None), "");
}

#[test]
fn a_policy_has_limits() {
    let many = |count: usize| Validation { rules: vec![rule("true").rules.remove(0); count], ..Validation::default() };
    assert_eq!(check(&many(50)), Ok(()));
    assert_eq!(check(&many(51)), Err("there are 51 rules, and at most 50 are allowed".to_owned()));
    let schemas = vec![KeySchema { key: "a".to_owned(), schema: json!(true) }; 51];
    let fault = check(&Validation { schemas, ..Validation::default() });
    assert_eq!(fault, Err("there are 51 schemas, and at most 50 are allowed".to_owned()));
}

#[test]
fn both_of_two_apply() {
    let one = schema("a", json!({"minimum": 1})).and(&parsing(Parsing::Off));
    let both = parsing(Parsing::Off).and(&one).and(&rule("data.a != '2'")).and(&parsing(Parsing::Always));
    assert_eq!(both.parse, Parsing::Always);
    for (value, is_valid) in [("0", false), ("1", true), ("2", false)] {
        assert_eq!(verdict(&both, &[("a", value)], None).is_empty(), is_valid, "{value}");
    }
    assert_ne!(verdict(&both, &[("a", "1"), ("b.json", "{")], None), "");
}

/// Every text of the content has this mark, and so has every name that the schema does not know.
const MARK: &str = "hunter";

fn content() -> impl Strategy<Value = Value> {
    let text = "[a-z ]{0,3}hunter[0-9]{0,3}";
    let leaf = prop_oneof![text.prop_map(Value::from), any::<i32>().prop_map(Value::from), Just(Value::Null)];
    let name = prop_oneof![Just("host".to_owned()), Just("tags".to_owned()), "hunter[a-z]{1,3}"];
    leaf.prop_recursive(3, 20, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name.clone(), inner, 0..4).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

fn any_schema() -> impl Strategy<Value = Value> {
    let kinds = ["string", "integer", "array", "object", "null"];
    let leaf = prop_oneof![
        prop::sample::select(kinds.to_vec()).prop_map(|kind| json!({"type": kind})),
        prop::sample::select(vec![
            json!({"type": ["string", "array"]}),
            json!({"maxLength": 3}),
            json!({"minLength": 30}),
            json!({"pattern": "^x"}),
            json!({"enum": ["red", 3]}),
            json!({"const": {"red": 1}}),
            json!({"format": "ipv4"}),
            json!({"minimum": 1_000_000}),
            json!({"multipleOf": 7}),
            json!({"uniqueItems": true, "maxItems": 1, "maxProperties": 1}),
            json!({"required": ["host"]}),
            json!({"propertyNames": {"maxLength": 4}}),
            json!({"contains": {"type": "boolean"}}),
            json!({"dependentRequired": {"host": ["port"]}}),
            json!(false),
        ]),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(host, tags)| json!({"properties": {"host": host, "tags": tags}})),
            inner.clone().prop_map(|schema| json!({"properties": {"host": schema}, "additionalProperties": false})),
            inner.clone().prop_map(|schema| json!({"properties": {"tags": schema}, "unevaluatedProperties": false})),
            inner.clone().prop_map(|schema| json!({"additionalProperties": schema, "items": schema})),
            inner.clone().prop_map(|schema| json!({"prefixItems": [schema], "unevaluatedItems": false})),
            inner.clone().prop_map(|schema| json!({"not": schema})),
            prop::collection::vec(inner.clone(), 1..3).prop_map(|schemas| json!({"anyOf": schemas})),
            prop::collection::vec(inner.clone(), 1..3).prop_map(|schemas| json!({"oneOf": schemas})),
            (inner.clone(), inner).prop_map(|(one, other)| json!({"if": one, "then": other, "else": false})),
        ]
    })
}

proptest! {
    #[test]
    fn no_content_is_in_what_a_schema_refuses(content in content(), schemas in prop::collection::vec(any_schema(), 4)) {
        let text = content.to_string();
        for candidate in schemas {
            let validation = schema("a.json", candidate);
            prop_assert_eq!(check(&validation), Ok(()));
            let sentence = verdict(&validation, &[("a.json", &text)], None);
            prop_assert!(!sentence.contains(MARK), "{}", sentence);
        }
    }

    #[test]
    fn no_content_is_in_what_a_parser_refuses(content in content(), cut in 0..200_usize, noise in "[\\[\\]{}:&*!|>'\"%@`#=\\\\u\n\t -]{0,6}") {
        let mut text = content.to_string();
        text.insert_str(cut.min(text.len()), &noise);
        for key in ["a.json", "a.yaml", "a.toml", "a.properties"] {
            for validation in [parsing(Parsing::Always), schema(key, json!({"type": "boolean"}))] {
                let sentence = verdict(&validation, &[(key, &text)], None);
                prop_assert!(!sentence.contains(MARK), "{}", sentence);
            }
        }
    }

    #[test]
    fn no_content_is_in_what_a_rule_refuses(text in "[a-z(]{0,3}hunter[0-9]{0,3}") {
        for expression in [
            "data.a == 1", "data.a - 1 == 1", "-data.a == 1", "!data.a", "data.a < 1", "data.a[0] == 1", "data[data.a] == ''",
            "[1][data.a] == 1", "{data: 1} == {}", "int(data.a) == 1", "double(data.a) == 1.0", "uint(data.a) == 1u", "'x'.matches(data.a)",
            "data.a", "data", "data.a in data.a", "data.a.all(x, true)", "max(data.a, 1) == 1", "size(1) == 1", "data.a.size(1) == 1",
            "data.a + 1 == ''", "data.a * data.a == ''", "data.a / 2 == ''", "data.a % 2 == ''", "data.a ? true : false",
            "data.a && true", "data.a.startsWith(1)", "[data.a].b", "data.a.contains(data)", "bytes(data) == b''", "string(data) == ''",
        ] {
            let sentence = verdict(&rule(expression), &[("a", &text)], None);
            prop_assert!(!sentence.is_empty(), "{}", expression);
            prop_assert!(!sentence.contains(MARK), "{}", sentence);
        }
    }
}

/// A file that the API server stores becomes a hundred times as large once it is parsed.
fn bomb() -> String {
    format!("[{}0]", r#"{"":0},"#.repeat(149_000))
}

#[test]
fn what_only_has_to_be_readable_is_not_kept_in_memory() {
    assert_eq!(verdict(&parsing(Parsing::Always), &[("a.json", &bomb())], None), "");
}

#[test]
fn what_would_take_too_much_memory_is_told_with_its_key_and_the_limit() {
    for key in ["a.json", "a.yaml", "a"] {
        let told = verdict(&schema(key, json!({"type": "array"})), &[(key, &bomb())], None);
        let start = format!("key {key} is too large to be compared with its schema: it would take about ");
        assert!(told.starts_with(&start) && told.contains("MiB") && told.contains("32 are allowed"), "{told}");
    }
    let toml = format!("a = [{}]", "{},".repeat(300_000));
    let told = verdict(&parsing(Parsing::Always), &[("a.toml", &toml)], None);
    assert!(told.contains("key a.toml") && told.contains("32 are allowed"), "{told}");
}

#[test]
fn a_large_file_of_the_usual_kind_is_compared_with_its_schema() {
    let lines: String = (0..20_000).map(|line| format!("  \"key-{line}\": \"value {line}\",\n")).collect();
    let text = format!("{{\n{lines}  \"last\": 1\n}}");
    assert_eq!(verdict(&schema("a.json", json!({"type": "object"})), &[("a.json", &text)], None), "");
}
