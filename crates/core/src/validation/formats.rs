//! Reading files by their extension. What is wrong is told as a place and a kind, never with the text that is there.

use std::str;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Number, Value};
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};

use super::weight::Weight;

/// How many nodes a YAML file may have: no file within Kubernetes' limit of 1 MiB has more.
const MAX_YAML_NODES: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Json,
    Yaml,
    Toml,
    Properties,
}

impl Format {
    /// The format that a key's extension names.
    pub fn of(key: &str) -> Option<Self> {
        let (_, extension) = key.rsplit_once('.')?;
        match extension {
            "json" => Some(Self::Json),
            "yaml" | "yml" => Some(Self::Yaml),
            "toml" => Some(Self::Toml),
            "properties" => Some(Self::Properties),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "JSON",
            Self::Yaml => "YAML",
            Self::Toml => "TOML",
            Self::Properties => "properties",
        }
    }

    /// Whether it can be read at all. Nothing of it is kept.
    pub fn check(self, bytes: &[u8]) -> Result<(), String> {
        let text = text(bytes)?;
        match self {
            Self::Json => json::<Weight>(text).map(drop),
            Self::Yaml => yaml::<IgnoredAny>(text).map(drop).map_err(|at| format!("wrong syntax{at}")),
            Self::Toml => toml(text).map(drop),
            Self::Properties => each_property(text, |_, _| ()),
        }
    }

    /// What its documents take as values.
    pub fn weight(self, bytes: &[u8]) -> Result<Weight, String> {
        let text = text(bytes)?;
        match self {
            Self::Json => json(text),
            Self::Yaml => {
                yaml::<Weight>(text).map(|all| all.into_iter().sum()).map_err(|at| format!("wrong syntax{at}"))
            }
            Self::Toml => Ok(Weight::of_toml(text)),
            Self::Properties => Ok(Weight::of_lines(text)),
        }
    }

    /// The documents in it as JSON: several in YAML, one in the others.
    pub fn documents(self, bytes: &[u8]) -> Result<Vec<Value>, String> {
        self.check(bytes)?;
        let text = text(bytes)?;
        match self {
            Self::Json => Ok(vec![json(text)?]),
            Self::Yaml => yaml_documents(text),
            Self::Toml => Ok(vec![from_toml(toml::Value::Table(toml(text)?))]),
            Self::Properties => Ok(vec![properties(text)?]),
        }
    }
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    str::from_utf8(bytes).map_err(|error| format!("it is not UTF-8 text from byte {} on", error.valid_up_to() + 1))
}

/// The parser's own words are constants when the syntax is at fault.
fn json<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Syntax | serde_json::error::Category::Eof => error.to_string(),
        _ => format!("wrong at line {}, column {}", error.line(), error.column()),
    })
}

/// The error is the place only.
fn yaml<'a, T: Deserialize<'a>>(text: &'a str) -> Result<Vec<T>, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: MAX_YAML_NODES, max_events: 3 * MAX_YAML_NODES },
        // As YAML 1.2 has it: `yes` and `on` are text.
        strict_booleans: true,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        // Most programs take the last one, and we do not know better than they.
        duplicate_keys: DuplicateKeyPolicy::LastWins,
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| match error.location() {
        Some(location) => format!(" at line {}, column {}", location.line(), location.column()),
        None => String::new(),
    })
}

fn yaml_documents(text: &str) -> Result<Vec<Value>, String> {
    let mut documents = yaml(text).map_err(|at| format!("what stands{at} cannot be compared with a schema"))?;
    if documents.is_empty() {
        documents.push(Value::Null);
    }
    Ok(documents)
}

fn toml(text: &str) -> Result<toml::Table, String> {
    Weight::of_toml(text).check()?;
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        let (line, column) = (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1);
        format!("wrong syntax at line {line}, column {column}")
    })
}

/// Dates become text, as in the other formats; a number that JSON does not have becomes null.
fn from_toml(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => Value::from(number),
        toml::Value::Float(number) => Number::from_f64(number).map_or(Value::Null, Value::Number),
        toml::Value::Boolean(value) => Value::Bool(value),
        toml::Value::Datetime(time) => Value::String(time.to_string()),
        toml::Value::Array(items) => items.into_iter().map(from_toml).collect(),
        toml::Value::Table(table) => table.into_iter().map(|(name, value)| (name, from_toml(value))).collect(),
    }
}

/// Java's properties: every text is valid but for the escapes of unicode characters.
fn properties(text: &str) -> Result<Value, String> {
    let mut found = Map::new();
    each_property(text, |name, value| drop(found.insert(name, Value::String(value))))?;
    Ok(Value::Object(found))
}

fn each_property(text: &str, mut see: impl FnMut(String, String)) -> Result<(), String> {
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let mut line = line.trim_start().to_owned();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        while continues(&line) {
            line.pop();
            line.push_str(lines.next().map_or("", |(_, next)| next.trim_start()));
        }
        let (name, value) = name_and_value(&line);
        let unescape = |text| unescape(text).ok_or_else(|| format!("malformed \\u escape at line {}", number + 1));
        see(unescape(name)?, unescape(value)?);
    }
    Ok(())
}

fn continues(line: &str) -> bool {
    (line.len() - line.trim_end_matches('\\').len()) % 2 == 1
}

fn name_and_value(line: &str) -> (&str, &str) {
    let is_separator = |char: char| matches!(char, '=' | ':') || char.is_whitespace();
    let mut is_escaped = false;
    let end = line.find(|char: char| {
        let ends = !is_escaped && is_separator(char);
        is_escaped = !is_escaped && char == '\\';
        ends
    });
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start();
    (name, rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start())
}

fn unescape(text: &str) -> Option<String> {
    let mut units = Vec::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(char) = rest.next() {
        let char = match (char, if char == '\\' { rest.next() } else { None }) {
            (_, Some('u')) => {
                let digits = rest.as_str().get(..4).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
                units.push(u16::from_str_radix(digits, 16).ok()?);
                rest = rest.as_str()[4..].chars();
                continue;
            }
            (_, Some('t')) => '\t',
            (_, Some('n')) => '\n',
            (_, Some('r')) => '\r',
            (_, Some('f')) => '\u{c}',
            (_, Some(escaped)) => escaped,
            (plain, None) => plain,
        };
        units.extend_from_slice(char.encode_utf16(&mut [0; 2]));
    }
    Some(String::from_utf16_lossy(&units))
}
