//! Whether a config's content may be released: that files can be read, match their schemas, and fulfil the policy's rules.
//!
//! No sentence of this module carries anything of the content but the names of keys: what it shows else comes from the policy. A policy
//! is written by the users of a namespace, so its work has limits: see `rules`, `schema` and `patterns`.
//!
//! What is heavy (`Validation::is_heavy`) needs a stack of `STACK_BYTES`, and memory for no more than `AT_ONCE` of it: both are the caller's
//! to see to.

mod formats;
mod patterns;
mod rules;
mod schema;
mod weight;

use std::collections::BTreeMap;

use formats::Format;
use serde_json::Value;

/// How many rules a policy may have.
pub const MAX_RULES: usize = 50;
/// How many schemas a policy may have.
pub const MAX_SCHEMAS: usize = 50;
/// The length of a rule's expression.
pub const MAX_EXPRESSION_LENGTH: usize = rules::MAX_LENGTH;

/// Parsers and evaluators of rules and schemas call themselves for each level of nesting. The stack suffices for the deepest that the
/// limits let through, in an unoptimized build too; only what is used of it takes memory.
pub const STACK_BYTES: usize = 128 << 20;

/// How many contents may be validated at the same time: each may take a good part of the memory that the operator has.
pub const AT_ONCE: usize = 2;

/// How much of the policy's text a sentence shows.
const MAX_SHOWN_CHARS: usize = 200;

/// Rules for a config's content.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Validation {
    pub parse: Parsing,
    pub schemas: Vec<KeySchema>,
    pub rules: Vec<Rule>,
}

/// Whether the files of a config must be readable, by their extension: `.json`, `.yaml`, `.yml`, `.toml`, `.properties`. Ordered by
/// strictness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Parsing {
    Off,
    /// What could be read in the old version must be readable in the new one: a template that only looks like YAML may stay one.
    #[default]
    KeepParsing,
    Always,
}

/// A JSON Schema for the value of a key, which is read by its extension, or else as YAML: that includes JSON and plain values.
/// It holds for each document of a YAML file.
#[derive(Debug, Clone, PartialEq)]
pub struct KeySchema {
    pub key: String,
    pub schema: Value,
}

/// A CEL expression over `data` and `oldData` that must be true. Both map keys to text; binary values are left out; `oldData` is empty
/// when there is no old version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub expression: String,
    pub message: Option<String>,
}

/// Text and binary values of a config. It has no `Debug`: it may be secret.
pub struct Data<'a>(pub BTreeMap<&'a str, &'a [u8]>);

/// Why a content may not be released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("key {key} is not valid {format}: {fault}")]
    Unreadable { key: String, format: &'static str, fault: String },
    #[error("key {key} is missing, and the policy has a schema for it")]
    Missing { key: String },
    #[error("key {key} is too large to be compared with its schema: {fault}")]
    TooLarge { key: String, fault: String },
    #[error("key {key} does not match its schema: {fault}")]
    Mismatch { key: String, fault: String },
    #[error("rule `{rule}` is not met: {message}")]
    Unmet { rule: String, message: String },
    #[error("rule `{rule}` cannot be evaluated: {fault}")]
    Unevaluable { rule: String, fault: String },
    #[error("the policy's validation cannot be used: {0}")]
    Policy(String),
}

/// Whether `new` may follow `old`.
pub fn validate(validation: &Validation, new: &Data<'_>, old: Option<&Data<'_>>) -> Result<(), Invalid> {
    check_readable(validation.parse, new, old)?;
    if validation.schemas.is_empty() && validation.rules.is_empty() {
        return Ok(());
    }
    validation.schemas.iter().try_for_each(|schema| check_schema(schema, new))?;
    rules::check_all(&validation.rules, new, old)
}

impl Validation {
    /// Whether the verdict on `new` depends on the old version. As heavy as the verdict.
    pub fn needs_old(&self, new: &Data<'_>) -> bool {
        if !self.rules.is_empty() || self.parse != Parsing::KeepParsing {
            return !self.rules.is_empty();
        }
        new.unreadable().next().is_some()
    }

    /// Whether the verdict on `new` takes much memory, or a deep stack.
    pub fn is_heavy(&self, new: &Data<'_>) -> bool {
        !self.schemas.is_empty() || !self.rules.is_empty() || new.is_heavy()
    }

    /// Whether the policy itself is sound; the error names the part that is not. As heavy as a verdict.
    pub fn check(&self) -> Result<(), String> {
        if self.rules.len() > MAX_RULES {
            return Err(format!("there are {} rules, and at most {MAX_RULES} are allowed", self.rules.len()));
        }
        if self.schemas.len() > MAX_SCHEMAS {
            return Err(format!("there are {} schemas, and at most {MAX_SCHEMAS} are allowed", self.schemas.len()));
        }
        for KeySchema { key, schema } in &self.schemas {
            schema::Checker::of(schema).map_err(|fault| format!("the schema for key {key}: {fault}"))?;
        }
        for Rule { expression, .. } in &self.rules {
            rules::check(expression).map_err(|fault| format!("rule `{}`: {fault}", shown(expression)))?;
        }
        Ok(())
    }

    /// Both apply.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        let Self { parse, schemas, rules } = other;
        self.parse = self.parse.max(*parse);
        self.schemas.extend(schemas.iter().cloned());
        self.rules.extend(rules.iter().cloned());
        self
    }
}

impl Data<'_> {
    /// Whether reading it takes memory: TOML's parser keeps what it reads.
    fn is_heavy(&self) -> bool {
        self.0.keys().any(|key| Format::of(key) == Some(Format::Toml))
    }

    /// The files that their format's parser refuses, and why.
    fn unreadable(&self) -> impl Iterator<Item = (&str, Format, String)> {
        self.0.iter().filter_map(|(key, value)| {
            let format = Format::of(key)?;
            format.check(value).err().map(|fault| (*key, format, fault))
        })
    }

    fn is_readable(&self, key: &str, format: Format) -> bool {
        self.0.get(key).is_some_and(|value| format.check(value).is_ok())
    }
}

fn check_readable(parse: Parsing, new: &Data<'_>, old: Option<&Data<'_>>) -> Result<(), Invalid> {
    let was_readable = |key, format| old.is_some_and(|old| old.is_readable(key, format));
    let is_fault = |key, format| match parse {
        Parsing::Off => false,
        Parsing::KeepParsing => was_readable(key, format),
        Parsing::Always => true,
    };
    if parse == Parsing::Off {
        return Ok(());
    }
    match new.unreadable().find(|(key, format, _)| is_fault(key, *format)) {
        Some((key, format, fault)) => Err(unreadable(key, format, fault)),
        None => Ok(()),
    }
}

fn unreadable(key: &str, format: Format, fault: String) -> Invalid {
    Invalid::Unreadable { key: key.to_owned(), format: format.name(), fault }
}

fn check_schema(KeySchema { key, schema }: &KeySchema, new: &Data<'_>) -> Result<(), Invalid> {
    let checker = schema::Checker::of(schema);
    let checker = checker.map_err(|fault| Invalid::Policy(format!("the schema for key {key}: {fault}")))?;
    let value = new.0.get(key.as_str()).ok_or_else(|| Invalid::Missing { key: key.clone() })?;
    let format = Format::of(key).unwrap_or(Format::Yaml);
    // Only here are values built of a file.
    let weight = format.weight(value).map_err(|fault| unreadable(key, format, fault))?;
    weight.check().map_err(|fault| Invalid::TooLarge { key: key.clone(), fault })?;
    let documents = format.documents(value).map_err(|fault| unreadable(key, format, fault))?;
    checker.check(&documents).map_err(|fault| Invalid::Mismatch { key: key.clone(), fault })
}

/// The policy's own text, on one line and not too long.
fn shown(text: &str) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(MAX_SHOWN_CHARS) {
        line.truncate(end);
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests;
