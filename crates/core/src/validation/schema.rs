//! JSON Schema: what a file must look like.
//!
//! A schema that refers to itself can make a small file cost years. So references stay within the schema, and before a file is compared
//! with it, [`Graph::cost`] says how often at most a part of the schema meets a part of the file.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use jsonschema::paths::{Location, LocationSegment};
use jsonschema::{Keyword, PatternOptions, ValidationError, Validator};
use serde_json::{Map, Value};

use super::patterns::{self, Pattern};
use super::shown;

/// The size of a schema, written as JSON.
const MAX_BYTES: usize = 256 << 10;
/// How often a part of a schema may meet a part of a file.
const MAX_VISITS: u64 = 10_000_000;
/// How many parts of a schema may be within each other while a file is compared: each takes some of the stack.
const MAX_NESTING: u32 = 2_000;
/// How many parts of a schema may lead to each other without going deeper into the file.
const MAX_DETOUR: u32 = 100;
/// How many patterns a schema may have: each may take some time before it is given up.
const MAX_PATTERNS: usize = 200;
/// How many of the properties that a schema knows a sentence lists.
const MAX_LISTED: usize = 10;

pub struct Checker<'a> {
    schema: &'a Value,
    validator: Validator,
    graph: Graph,
}

impl<'a> Checker<'a> {
    pub fn of(schema: &'a Value) -> Result<Self, String> {
        let bytes = schema.to_string().len();
        if bytes > MAX_BYTES {
            return Err(format!("it has {bytes} bytes, and at most {MAX_BYTES} are allowed"));
        }
        let graph = Graph::of(schema)?;
        graph.cost(0)?;

        let options = jsonschema::options().offline().should_validate_formats(true);
        let options = options.with_pattern_options(PatternOptions::regex()).with_keyword("pattern", bounded_pattern);
        // What the message quotes is the schema, not the content.
        let validator = options.build(schema).map_err(|error| shown(&error.to_string()))?;
        Ok(Self { schema, validator, graph })
    }

    pub fn check(&self, documents: &[Value]) -> Result<(), String> {
        for (index, document) in documents.iter().enumerate() {
            let fault = self.check_document(document);
            let which = if documents.len() > 1 { format!("document {}: ", index + 1) } else { String::new() };
            fault.map_err(|fault| format!("{which}{fault}"))?;
        }
        Ok(())
    }

    fn check_document(&self, document: &Value) -> Result<(), String> {
        let (parts, depth) = extent(document);
        if self.graph.cost(depth)?.visits.saturating_mul(parts) > MAX_VISITS {
            return Err(
                "comparing this file with it would take too long; write it with fewer references to itself".into()
            );
        }
        self.validator.validate(document).map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &ValidationError<'_>) -> String {
        let place = self.place(error.instance_path());
        shown(&format!("{place} {}", self.demand(error)))
    }

    /// Where in the file. Names that the schema does not have may be secret.
    fn place(&self, path: &Location) -> String {
        if path.is_empty() {
            return "the value".to_owned();
        }
        let known = words(self.schema);
        let segment = |segment| match segment {
            LocationSegment::Property(name) if known.contains(name.as_ref()) => format!("/{name}"),
            LocationSegment::Property(_) => "/*".to_owned(),
            LocationSegment::Index(index) => format!("/{index}"),
        };
        path.segments().map(segment).collect()
    }

    /// What the schema demands there; the schema's words only.
    fn demand(&self, error: &ValidationError<'_>) -> String {
        match error.kind() {
            Kind::Type { kind: TypeKind::Single(kind) } => format!("must be of type {kind}"),
            Kind::Type { kind: TypeKind::Multiple(kinds) } => {
                format!(
                    "must be of type {}",
                    kinds.iter().map(|kind| kind.to_string()).collect::<Vec<_>>().join(" or ")
                )
            }
            Kind::Required { property } => format!("must have the property {property}"),
            Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
                format!(
                    "has {} that the schema does not know{}",
                    properties(unexpected.len()),
                    self.known_beside(error)
                )
            }
            Kind::PropertyNames { .. } => "has a property whose name the schema does not allow".to_owned(),
            Kind::Enum { options } => format!("must be one of {options}"),
            Kind::Constant { expected_value } => format!("must be {expected_value}"),
            Kind::Minimum { limit } => format!("must be at least {limit}"),
            Kind::Maximum { limit } => format!("must be at most {limit}"),
            Kind::ExclusiveMinimum { limit } => format!("must be more than {limit}"),
            Kind::ExclusiveMaximum { limit } => format!("must be less than {limit}"),
            Kind::MultipleOf { multiple_of } => format!("must be a multiple of {multiple_of}"),
            Kind::MinLength { limit } => format!("must have at least {limit} characters"),
            Kind::MaxLength { limit } => format!("must have at most {limit} characters"),
            Kind::MinItems { limit } => format!("must have at least {limit} items"),
            Kind::MaxItems { limit } => format!("must have at most {limit} items"),
            Kind::AdditionalItems { limit } => format!("must have at most {limit} items"),
            Kind::MinProperties { limit } => format!("must have at least {limit} properties"),
            Kind::MaxProperties { limit } => format!("must have at most {limit} properties"),
            Kind::UniqueItems => "must not have equal items".to_owned(),
            // Of our own keyword.
            Kind::Custom { message, .. } => message.clone(),
            Kind::Format { format } => format!("must have the format {format}"),
            Kind::FalseSchema => "must not be there".to_owned(),
            Kind::AnyOf { .. } | Kind::OneOfNotValid { .. } => {
                format!("matches none of the schemas in {}", error.schema_path())
            }
            Kind::OneOfMultipleValid { .. } => {
                format!("matches more than one of the schemas in {}", error.schema_path())
            }
            _ => format!("does not fulfil {}", error.schema_path()),
        }
    }

    /// The properties that the schema has where it refuses another, so that a misspelt one is found.
    fn known_beside(&self, error: &ValidationError<'_>) -> String {
        let parent = error.schema_path().as_str().rsplit_once('/').map_or("", |(parent, _)| parent);
        let Some(known) = self.schema.pointer(parent).and_then(|schema| schema["properties"].as_object()) else {
            return String::new();
        };
        let listed: Vec<&str> = known.keys().take(MAX_LISTED).map(String::as_str).collect();
        format!("; it knows {}{}", listed.join(", "), if known.len() > MAX_LISTED { ", …" } else { "" })
    }
}

/// The keyword `pattern`, with an engine whose time has a limit.
struct BoundedPattern {
    text: String,
    pattern: Pattern,
}

impl<'i> Keyword<'i> for BoundedPattern {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        let demand = match instance.as_str().map(|text| self.pattern.is_match(text)) {
            None | Some(Some(true)) => return Ok(()),
            Some(Some(false)) => format!("must match the pattern {}", self.text),
            Some(None) => format!("takes too long to compare with the pattern {}", self.text),
        };
        Err(ValidationError::custom(demand))
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        self.validate(instance).is_ok()
    }
}

fn bounded_pattern<'a>(
    _: &'a Map<String, Value>,
    value: &'a Value,
    _: Location,
) -> Result<Box<dyn for<'i> Keyword<'i>>, ValidationError<'a>> {
    let text = value.as_str().unwrap_or_default().to_owned();
    let pattern = Pattern::new(&in_rust(&text)).map_err(ValidationError::schema)?;
    Ok(Box::new(BoundedPattern { text, pattern }))
}

/// JSON Schema has the patterns of JavaScript. What has no counterpart is refused as a pattern.
fn in_rust(pattern: &str) -> String {
    jsonschema_regex::to_rust_regex(pattern).map_or_else(|()| pattern.to_owned(), Cow::into_owned)
}

fn properties(count: usize) -> String {
    if count == 1 { "a property".to_owned() } else { format!("{count} properties") }
}

/// Every name and text of the schema.
fn words(schema: &Value) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    let mut rest = vec![schema];
    while let Some(value) = rest.pop() {
        match value {
            Value::String(text) => drop(found.insert(text.as_str())),
            Value::Array(items) => rest.extend(items),
            Value::Object(fields) => {
                found.extend(fields.keys().map(String::as_str));
                rest.extend(fields.values());
            }
            _ => {}
        }
    }
    found
}

/// How many parts a document has, and how deep it is.
fn extent(value: &Value) -> (u64, usize) {
    let below = |(parts, depth): (u64, usize), child: &Value| {
        let (more, deeper) = extent(child);
        (parts + more, depth.max(deeper + 1))
    };
    match value {
        Value::Array(items) => items.iter().fold((1, 0), below),
        Value::Object(fields) => fields.values().fold((1, 0), below),
        _ => (1, 0),
    }
}

/// Which parts of a schema lead to which; the first is the schema itself.
struct Graph(Vec<Part>);

/// A part of a schema, and the parts that it makes a file meet.
#[derive(Default)]
struct Part {
    /// The same place of the file.
    in_place: Vec<usize>,
    /// A child of it; at most one of these parts meets the same child.
    one_of_below: Vec<usize>,
    /// A child of it; all of these parts may meet the same child.
    all_below: Vec<usize>,
    /// The parts in place are asked again for what they left over.
    asks_again: bool,
    patterns: usize,
}

/// What comparing one path through a file takes at most.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    visits: u64,
    nesting: u32,
}

impl Cost {
    fn beside(self, other: Self) -> Self {
        Self { visits: self.visits.saturating_add(other.visits), nesting: self.nesting.max(other.nesting) }
    }

    fn or(self, other: Self) -> Self {
        Self { visits: self.visits.max(other.visits), nesting: self.nesting.max(other.nesting) }
    }
}

impl Graph {
    fn of(root: &Value) -> Result<Self, String> {
        let mut found: BTreeMap<*const Value, usize> = BTreeMap::from([(std::ptr::from_ref(root), 0)]);
        let mut schemas = vec![root];
        let mut parts: Vec<Part> = Vec::new();
        let mut patterns = 0;
        while let Some(&schema) = schemas.get(parts.len()) {
            let mut index_of = |schema| {
                *found.entry(std::ptr::from_ref(schema)).or_insert_with(|| {
                    schemas.push(schema);
                    schemas.len() - 1
                })
            };
            let part = Part::of(schema, root, parts.is_empty(), &mut index_of)?;
            patterns += part.patterns;
            if patterns > MAX_PATTERNS {
                return Err(format!("it has more than {MAX_PATTERNS} patterns"));
            }
            parts.push(part);
        }
        Ok(Self(parts))
    }

    /// The cost of one path through a file of this depth. It is found from the bottom up: what a part costs with so much of the file
    /// below it follows from what its neighbours cost with one less.
    fn cost(&self, depth: usize) -> Result<Cost, String> {
        let mut below = vec![Cost::default(); self.0.len()];
        for _ in 0..=depth {
            let mut here = vec![None; self.0.len()];
            for part in 0..self.0.len() {
                self.cost_of(part, &below, &mut here, MAX_DETOUR)?;
            }
            below = here.into_iter().map(Option::unwrap_or_default).collect();
        }
        let cost = below[0];
        if cost.nesting > MAX_NESTING {
            return Err(format!("more than {MAX_NESTING} of its parts are within each other"));
        }
        Ok(cost)
    }

    fn cost_of(&self, part: usize, below: &[Cost], here: &mut [Option<Cost>], detour: u32) -> Result<Cost, String> {
        if let Some(known) = here[part] {
            return Ok(known);
        }
        let detour = detour.checked_sub(1).ok_or_else(|| {
            format!(
                "it refers to itself without going deeper into the file, or through more than {MAX_DETOUR} references"
            )
        })?;
        let Part { in_place, one_of_below, all_below, asks_again, patterns: _ } = &self.0[part];
        let mut cost = Cost::default();
        for part in in_place {
            cost = cost.beside(self.cost_of(*part, below, here, detour)?);
        }
        if *asks_again {
            cost.visits = cost.visits.saturating_mul(3);
        }
        let one = one_of_below.iter().map(|part| below[*part]).fold(Cost::default(), Cost::or);
        let all = all_below.iter().map(|part| below[*part]).fold(Cost::default(), Cost::beside);
        cost = cost.beside(one).beside(all);
        cost = Cost { visits: cost.visits.saturating_add(1), nesting: cost.nesting.saturating_add(1) };
        here[part] = Some(cost);
        Ok(cost)
    }
}

impl Part {
    fn of<'a>(
        schema: &'a Value,
        root: &'a Value,
        is_root: bool,
        index_of: &mut impl FnMut(&'a Value) -> usize,
    ) -> Result<Self, String> {
        let mut part = Self::default();
        for (keyword, value) in schema.as_object().into_iter().flatten() {
            let mut indices = |values: Vec<&'a Value>| values.into_iter().map(&mut *index_of).collect::<Vec<_>>();
            match keyword.as_str() {
                "allOf" | "anyOf" | "oneOf" => part.in_place.extend(indices(items(value))),
                "not" | "if" | "then" | "else" => part.in_place.extend(indices(vec![value])),
                "dependentSchemas" | "dependencies" => part.in_place.extend(indices(fields(value))),
                "$ref" => part.in_place.extend(indices(vec![resolve(value, root)?])),
                "properties" => part.one_of_below.extend(indices(fields(value))),
                "prefixItems" => part.one_of_below.extend(indices(items(value))),
                "items" if value.is_array() => part.one_of_below.extend(indices(items(value))),
                "patternProperties" => {
                    part.patterns += fields(value).len();
                    let mut names = value.as_object().into_iter().flatten().map(|(name, _)| name);
                    names.try_for_each(|name| patterns::check_complete(&in_rust(name)))?;
                    part.all_below.extend(indices(fields(value)));
                }
                "pattern" => part.patterns += 1,
                "items" | "additionalItems" | "contains" | "additionalProperties" | "propertyNames" => {
                    part.all_below.extend(indices(vec![value]));
                }
                "unevaluatedItems" | "unevaluatedProperties" => {
                    part.asks_again = true;
                    part.all_below.extend(indices(vec![value]));
                }
                "$dynamicRef" | "$recursiveRef" => return Err(format!("{keyword} is not supported; use $ref")),
                "$id" | "id" if !is_root && value.is_string() => {
                    return Err(format!("{keyword} is supported at the top of a schema only"));
                }
                _ => {}
            }
        }
        Ok(part)
    }
}

fn items(value: &Value) -> Vec<&Value> {
    value.as_array().into_iter().flatten().collect()
}

fn fields(value: &Value) -> Vec<&Value> {
    value.as_object().into_iter().flatten().map(|(_, field)| field).collect()
}

/// Nothing is ever fetched: a reference leads to another place of the same schema.
fn resolve<'a>(reference: &Value, root: &'a Value) -> Result<&'a Value, String> {
    let text = reference.as_str().unwrap_or_default();
    let pointer = text.strip_prefix('#').filter(|pointer| !pointer.contains('%'));
    let target = pointer.and_then(|pointer| root.pointer(pointer));
    target.ok_or_else(|| {
        format!("reference {} leads nowhere; references within the schema are supported, as #/$defs/name", shown(text))
    })
}
