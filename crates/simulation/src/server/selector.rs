//! Which objects a list or watch is about: by labels and by fields.

use crate::store::{Object, Refusal};

/// All of these must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    name: String,
    holds: Holds,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Holds {
    In(Vec<String>),
    /// Also for what has no such label.
    NotIn(Vec<String>),
    Exists,
    Missing,
}

impl Selector {
    pub fn parse(labels: &str, fields: &str) -> Result<Self, Refusal> {
        let parsed = |text| split(text).map(requirement).collect::<Option<Vec<_>>>();
        let unreadable = || Refusal::bad_request(format!("unable to parse the selector {labels:?} or {fields:?}"));
        let (labels, fields) = (parsed(labels).ok_or_else(unreadable)?, parsed(fields).ok_or_else(unreadable)?);
        Ok(Self { labels, fields })
    }

    pub fn holds(&self, object: &Object) -> bool {
        let label = |name: &str| object.value["metadata"]["labels"][name].as_str();
        // A field that is not there is an empty text.
        let field = |name: &str| {
            let steps: Vec<&str> = name.split('.').collect();
            Some(object.value.at(&steps).as_str().unwrap_or_default())
        };
        self.labels.iter().all(|of| of.holds.holds(label(&of.name)))
            && self.fields.iter().all(|of| of.holds.holds(field(&of.name)))
    }
}

impl Holds {
    fn holds(&self, value: Option<&str>) -> bool {
        let is_among = |values: &[String]| value.is_some_and(|value| values.iter().any(|known| known == value));
        match self {
            Self::In(values) => is_among(values),
            Self::NotIn(values) => !is_among(values),
            Self::Exists => value.is_some(),
            Self::Missing => value.is_none(),
        }
    }
}

/// At commas, but not at those within brackets.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let parts = text.split(move |letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty())
}

fn requirement(text: &str) -> Option<Requirement> {
    let new = |name: &str, holds| Some(Requirement { name: name.trim().to_owned(), holds });
    let one = |value: &str| vec![value.trim().to_owned()];
    if let Some((name, value)) = text.split_once("!=") {
        return new(name, Holds::NotIn(one(value)));
    }
    if let Some((name, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return new(name, Holds::In(one(value)));
    }
    if let Some((name, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        return match name.trim().rsplit_once(' ')? {
            (name, "in") => new(name, Holds::In(values)),
            (name, "notin") => new(name, Holds::NotIn(values)),
            _ => None,
        };
    }
    match text.strip_prefix('!') {
        Some(name) => new(name, Holds::Missing),
        None if !text.contains(' ') => new(text, Holds::Exists),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::{Key, Kind};

    #[test]
    fn selectors_are_read_as_kubernetes_does() {
        let value = json!({"metadata": {"name": "x", "labels": {"app": "shop", "tier": "web"}}, "type": "Opaque"});
        let object = Object::new(Key::new(Kind::Secret, "ns", "x"), 1, value.into());
        let holds = |labels: &str, fields: &str| Selector::parse(labels, fields).unwrap().holds(&object);
        for labels in ["", "app", "app=shop", "app==shop,tier", "app in (a, shop),tier notin (x)", "!other", "other!=1"]
        {
            assert!(holds(labels, ""), "{labels}");
        }
        for labels in ["other", "app=a", "app!=shop", "!app", "app in (a,b)", "tier notin (web)", "app,other"] {
            assert!(!holds(labels, ""), "{labels}");
        }
        assert!(holds("", "metadata.name=x,type!=helm.sh/release.v1"));
        assert!(!holds("", "metadata.name=y"));
        assert!(!holds("", "type!=Opaque"));
        assert!(holds("", "spec.nodeName="), "what is missing is empty");
        assert!(Selector::parse("a b c", "").is_err());
    }
}
