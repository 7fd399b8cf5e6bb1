//! How much memory a file takes once it is parsed into values: a small file may become a hundred times as large.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// What one file may take as values. With [`super::AT_ONCE`] of them, the operator stays well within its memory limit.
pub const MAX_WEIGHT: usize = 32 << 20;

/// What each value takes, and an object besides: its first field brings room for several.
const VALUE: usize = 64;
const OBJECT: usize = 640;

/// The bytes that a value takes, found by reading it without keeping anything of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Weight(pub usize);

impl Weight {
    /// At most so much, from the signs that a TOML file needs for each value: its parser keeps all of it while it reads.
    pub fn of_toml(text: &str) -> Self {
        let weight = |byte: u8| match byte {
            b'[' | b'{' => VALUE + OBJECT,
            b'=' | b',' => VALUE,
            _ => 1,
        };
        Self(text.bytes().map(weight).sum())
    }

    /// Each line of a properties file may be a name and a value.
    pub fn of_lines(text: &str) -> Self {
        Self(text.len() + OBJECT + 2 * VALUE * text.lines().count())
    }

    pub fn check(self) -> Result<(), String> {
        if self.0 <= MAX_WEIGHT {
            return Ok(());
        }
        Err(format!(
            "it would take about {} MiB of memory to check, and {} are allowed: give it fewer values, or divide it",
            self.0 >> 20,
            MAX_WEIGHT >> 20
        ))
    }

    fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl std::iter::Sum for Weight {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::plus)
    }
}

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Weigh)
    }
}

struct Weigh;

impl<'de> Visitor<'de> for Weigh {
    type Value = Weight;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Weight, E> {
        Ok(Weight(VALUE))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Weight, E> {
        Ok(Weight(VALUE))
    }

    fn visit_i128<E>(self, _: i128) -> Result<Weight, E> {
        Ok(Weight(VALUE))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Weight, E> {
        Ok(Weight(VALUE))
    }

    fn visit_u128<E>(self, _: u128) -> Result<Weight, E> {
        Ok(Weight(VALUE))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Weight, E> {
        Ok(Weight(VALUE))
    }

    fn visit_str<E>(self, text: &str) -> Result<Weight, E> {
        Ok(Weight(VALUE + text.len()))
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Weight, E> {
        Ok(Weight(VALUE + bytes.len()))
    }

    fn visit_unit<E>(self) -> Result<Weight, E> {
        Ok(Weight(VALUE))
    }

    fn visit_none<E>(self) -> Result<Weight, E> {
        Ok(Weight(VALUE))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Weight, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Weight, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Weight, A::Error> {
        let mut all = Weight(VALUE);
        while let Some(item) = items.next_element()? {
            all = all.plus(item);
        }
        Ok(all)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Weight, A::Error> {
        let mut all = Weight(VALUE + OBJECT);
        while let Some((name, value)) = fields.next_entry::<Weight, Weight>()? {
            all = all.plus(name).plus(value);
        }
        Ok(all)
    }
}
