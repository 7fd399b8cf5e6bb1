//! The parts of the benchmark, and which of them the command line asks for.

use crate::{change, fan_out, joining, memory, rollback};

const LIST: &str = "--list";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Change,
    FanOut,
    Rollback,
    Joining,
    Memory,
}

impl Part {
    /// The memory comes last: it tells what the others needed.
    const ALL: [Self; 5] = [Self::Change, Self::FanOut, Self::Rollback, Self::Joining, Self::Memory];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Change => change::NAME,
            Self::FanOut => fan_out::NAME,
            Self::Rollback => rollback::NAME,
            Self::Joining => joining::NAME,
            Self::Memory => memory::NAME,
        }
    }

    pub(crate) fn about(self) -> String {
        match self {
            Self::Change => change::about(),
            Self::FanOut => fan_out::about(),
            Self::Rollback => rollback::about(),
            Self::Joining => joining::about(),
            Self::Memory => memory::about(),
        }
    }

    fn named(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|part| part.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(|part| format!("`{}`", part.name())).join(", ");
            format!("there is no part `{name}`, only {known}: `bench {LIST}` tells what they measure")
        })
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    List,
    Measure(Vec<Part>),
}

/// The parts are measured in the order of their names on the command line; without a name, all of them.
pub(crate) fn understand(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let arguments: Vec<String> = arguments.collect();
    if arguments.iter().any(|argument| argument == LIST) {
        return Ok(Command::List);
    }
    if arguments.is_empty() {
        return Ok(Command::Measure(Part::ALL.to_vec()));
    }
    arguments.iter().map(|name| Part::named(name)).collect::<Result<_, _>>().map(Command::Measure)
}

/// One line per part.
pub(crate) fn list() -> String {
    let width = Part::ALL.iter().map(|part| part.name().len()).max().unwrap_or_default();
    Part::ALL.iter().map(|part| format!("{:width$}   {}\n", part.name(), part.about())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn understood(arguments: &[&str]) -> Result<Command, String> {
        understand(arguments.iter().map(|&argument| argument.to_owned()))
    }

    #[test]
    fn without_a_name_all_parts_are_measured() {
        assert_eq!(understood(&[]), Ok(Command::Measure(Part::ALL.to_vec())));
    }

    #[test]
    fn named_parts_are_measured_in_their_order() {
        let parts = vec![Part::Rollback, Part::FanOut];
        assert_eq!(understood(&["rollback", "fan-out"]), Ok(Command::Measure(parts)));
    }

    #[test]
    fn an_unknown_part_is_told_the_known_ones() {
        let error = understood(&["change", "pairs"]).unwrap_err();
        assert!(error.contains("no part `pairs`"), "{error}");
        for part in Part::ALL {
            assert!(error.contains(&format!("`{}`", part.name())), "{error}");
        }
    }

    #[test]
    fn the_list_has_one_line_for_every_part() {
        assert_eq!(understood(&["--list"]), Ok(Command::List));
        let list = list();
        assert_eq!(list.lines().count(), Part::ALL.len());
        for (line, part) in list.lines().zip(Part::ALL) {
            assert!(line.starts_with(part.name()) && line.ends_with(&part.about()), "{line}");
        }
    }
}
