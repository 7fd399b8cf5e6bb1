//! The fields of an object. Revisions of an object share those that they have in common: most writes change one field, and copy no other.

use std::ops::{Index, IndexMut};
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use serde::de::DeserializeOwned;
use serde::de::value::MapDeserializer;
use serde_json::{Map, Value};

static NULL: Value = Value::Null;

/// By name. There are few of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields(Vec<Arc<Field>>);

#[derive(Debug, Clone)]
struct Field {
    name: String,
    value: Value,
    text: OnceLock<Bytes>,
}

impl Field {
    fn new(name: String, value: Value) -> Self {
        Self { name, value, text: OnceLock::new() }
    }

    /// Made once for all that share it.
    fn text(&self) -> &Bytes {
        // A value with texts for its names can always be written.
        self.text.get_or_init(|| serde_json::to_vec(&self.value).unwrap_or_default().into())
    }
}

impl PartialEq for Field {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.value == other.value
    }
}

impl Eq for Field {}

impl Fields {
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|field| field.name == name).map(|field| &field.value)
    }

    /// As JSON pointers go.
    pub fn pointer(&self, pointer: &str) -> Option<&Value> {
        let (name, rest) = split(pointer)?;
        self.get(name)?.pointer(rest)
    }

    pub(crate) fn pointer_mut(&mut self, pointer: &str) -> Option<&mut Value> {
        let (name, rest) = split(pointer)?;
        self.get(name)?;
        self[name].pointer_mut(rest)
    }

    /// What is at the end of a path; null if there is nothing.
    pub fn at(&self, path: &[&str]) -> &Value {
        let Some((first, rest)) = path.split_first() else { return &NULL };
        rest.iter().fold(&self[*first], |value, step| &value[*step])
    }

    /// By name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|field| (field.name.as_str(), &field.value))
    }

    /// Sets a field, or takes it away.
    pub(crate) fn set(&mut self, name: &str, value: Option<Value>) {
        match value {
            Some(value) => self.put(Arc::new(Field::new(name.to_owned(), value))),
            None => drop(self.remove(name)),
        }
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<Value> {
        let place = self.0.iter().position(|field| field.name == name)?;
        Some(Arc::unwrap_or_clone(self.0.remove(place)).value)
    }

    /// Takes a field from another revision, or takes it away.
    pub(super) fn take_from(&mut self, other: &Self, name: &str) {
        match other.0.iter().find(|field| field.name == name) {
            Some(field) => self.put(Arc::clone(field)),
            None => drop(self.remove(name)),
        }
    }

    /// Shares whatever is the same in another revision.
    pub(super) fn share(&mut self, other: &Self) {
        for field in &mut self.0 {
            if let Some(same) = other.0.iter().find(|other| *other == field) {
                *field = Arc::clone(same);
            }
        }
    }

    /// Whether a field is shared, and so the same for sure.
    pub(super) fn shares(&self, other: &Self, name: &str) -> bool {
        let of = |fields: &Self| fields.0.iter().find(|field| field.name == name).map(Arc::as_ptr);
        of(self).is_some() && of(self) == of(other)
    }

    /// Whether any field but these is another.
    pub(super) fn differ_beyond(&self, other: &Self, names: &[&str]) -> bool {
        let is_meant = |field: &&Arc<Field>| !names.contains(&field.name.as_str());
        !self.0.iter().filter(is_meant).eq(other.0.iter().filter(is_meant))
    }

    /// Read as a type.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(MapDeserializer::new(self.iter()))
    }

    /// As one value.
    pub fn to_value(&self) -> Value {
        Value::Object(self.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect::<Map<_, _>>())
    }

    /// Each as JSON, by name.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.0.iter().map(|field| (field.name.as_str(), field.text()))
    }

    fn put(&mut self, field: Arc<Field>) {
        match self.0.binary_search_by(|known| known.name.cmp(&field.name)) {
            Ok(place) => self.0[place] = field,
            Err(place) => self.0.insert(place, field),
        }
    }
}

/// The first step of a pointer, and the rest. No field of ours has a name that would be escaped.
fn split(pointer: &str) -> Option<(&str, &str)> {
    let path = pointer.strip_prefix('/')?;
    let end = path.find('/').unwrap_or(path.len());
    Some(path.split_at(end))
}

/// What is no object has no fields.
impl From<Value> for Fields {
    fn from(value: Value) -> Self {
        let Value::Object(fields) = value else { return Self::default() };
        Self(fields.into_iter().map(|(name, value)| Arc::new(Field::new(name, value))).collect())
    }
}

impl Index<&str> for Fields {
    type Output = Value;

    fn index(&self, name: &str) -> &Value {
        self.get(name).unwrap_or(&NULL)
    }
}

impl IndexMut<&str> for Fields {
    fn index_mut(&mut self, name: &str) -> &mut Value {
        let place = match self.0.binary_search_by(|known| known.name.as_str().cmp(name)) {
            Ok(place) => place,
            Err(place) => {
                self.0.insert(place, Arc::new(Field::new(name.to_owned(), Value::Null)));
                place
            }
        };
        let field = Arc::make_mut(&mut self.0[place]);
        field.text.take();
        &mut field.value
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_of_one_field_leaves_the_others_shared_and_other_revisions_alone() {
        let old = Fields::from(json!({"metadata": {"name": "a"}, "spec": {"x": 1}, "status": {}}));
        let spec = |fields: &Fields| fields.texts().find(|(name, _)| *name == "spec").map(|(_, text)| text.clone());
        assert_eq!(spec(&old).unwrap(), r#"{"x":1}"#);
        let mut new = old.clone();
        new["spec"]["x"] = json!(2);
        assert!(new.shares(&old, "metadata") && !new.shares(&old, "spec"));
        assert_eq!((&old["spec"]["x"], &new["spec"]["x"]), (&json!(1), &json!(2)));
        assert_eq!(spec(&new).unwrap(), r#"{"x":2}"#);
        assert!(new.differ_beyond(&old, &["metadata", "status"]) && !new.differ_beyond(&old, &["spec"]));
        new["spec"]["x"] = json!(1);
        assert_eq!(new, old);
        new.share(&old);
        assert!(new.shares(&old, "spec"));
    }

    #[test]
    fn they_are_read_as_the_value_that_they_were_made_from() {
        let value = json!({"b": {"c": ["d"]}, "a": null});
        let mut fields = Fields::from(value.clone());
        assert_eq!(fields.to_value(), value);
        assert_eq!(fields.pointer("/b/c/0"), Some(&json!("d")));
        assert_eq!(fields.pointer("/a"), Some(&Value::Null));
        assert_eq!((fields.pointer("/z"), fields.pointer("")), (None, None));
        assert_eq!((fields.at(&["b", "c"]), fields.at(&["x", "y"])), (&json!(["d"]), &Value::Null));
        *fields.pointer_mut("/b/c").unwrap() = json!(1);
        fields.set("a", None);
        assert_eq!(fields.to_value(), json!({"b": {"c": 1}}));
        assert_eq!(fields.remove("b"), Some(json!({"c": 1})));
        assert_eq!(fields.remove("b"), None);
    }
}
