//! What was measured, as a table for people and as JSON for programs.

use std::fmt;

use anyhow::Result;
use jiff::Timestamp;
use serde::Serialize;

const HEADER: [&str; 5] = ["PART", "WHAT", "VALUE", "UNIT", "NOTE"];
/// The column of numbers, which end below each other.
const VALUE: usize = 2;
/// Between two columns.
const GAP: &str = "   ";

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Value {
    Count(usize),
    Measure(f64),
}

impl From<usize> for Value {
    fn from(count: usize) -> Self {
        Self::Count(count)
    }
}

impl From<f64> for Value {
    fn from(measure: f64) -> Self {
        Self::Measure(measure)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(formatter, "{count}"),
            Self::Measure(measure) => write!(formatter, "{measure:.2}"),
        }
    }
}

/// One number.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    part: &'static str,
    name: String,
    value: Value,
    unit: &'static str,
    note: String,
}

impl Row {
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.note = note.into();
    }

    fn cells(&self) -> [String; HEADER.len()] {
        [self.part.to_owned(), self.name.clone(), self.value.to_string(), self.unit.to_owned(), self.note.clone()]
    }
}

/// The numbers of one part.
pub(crate) struct Rows {
    part: &'static str,
    rows: Vec<Row>,
}

impl Rows {
    pub(crate) fn of(part: &'static str) -> Self {
        Self { part, rows: Vec::new() }
    }

    pub(crate) fn add(&mut self, name: impl Into<String>, value: impl Into<Value>, unit: &'static str) -> &mut Row {
        let row = Row { part: self.part, name: name.into(), value: value.into(), unit, note: String::new() };
        self.rows.push_mut(row)
    }

    /// Whoever reads the times is to know what else is in them.
    pub(crate) fn add_retries(&mut self, retries: usize) {
        self.add("requests of the benchmark sent again", retries, "requests").note("while it measured");
    }

    /// Empty if nothing was measured.
    pub(crate) fn table(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let mut lines = vec![HEADER.map(str::to_owned)];
        lines.extend(self.rows.iter().map(Row::cells));
        let widths = widths(&lines);
        lines.iter().map(|cells| line(cells, &widths)).collect()
    }
}

/// The note of a number that was measured while requests had to be sent again.
pub(crate) fn sent_again(retries: usize) -> String {
    match retries {
        0 => String::new(),
        1 => "1 request sent again meanwhile".to_owned(),
        _ => format!("{retries} requests sent again meanwhile"),
    }
}

fn widths(lines: &[[String; HEADER.len()]]) -> [usize; HEADER.len()] {
    let width = |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or_default();
    std::array::from_fn(width)
}

fn line(cells: &[String; HEADER.len()], widths: &[usize; HEADER.len()]) -> String {
    let aligned: [String; HEADER.len()] = std::array::from_fn(|column| {
        let (cell, width) = (&cells[column], widths[column]);
        if column == VALUE { format!("{cell:>width$}") } else { format!("{cell:width$}") }
    });
    format!("{}\n", aligned.join(GAP).trim_end())
}

/// One run of the program.
#[derive(Serialize)]
pub(crate) struct Results {
    /// When it began.
    time: Timestamp,
    rows: Vec<Row>,
    failed: Vec<Failure>,
}

#[derive(Serialize)]
struct Failure {
    part: &'static str,
    cause: String,
}

impl Results {
    pub(crate) fn since(time: Timestamp) -> Self {
        Self { time, rows: Vec::new(), failed: Vec::new() }
    }

    pub(crate) fn add(&mut self, rows: Rows) {
        self.rows.extend(rows.rows);
    }

    pub(crate) fn add_failure(&mut self, part: &'static str, cause: String) {
        self.failed.push(Failure { part, cause });
    }

    pub(crate) fn failed_parts(&self) -> Vec<&'static str> {
        self.failed.iter().map(|failure| failure.part).collect()
    }

    pub(crate) fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rows() -> Rows {
        let mut rows = Rows::of("fan-out");
        rows.add("requests of the operator", 1004, "requests");
        rows.add("ratio", 1.5, "×").note("the middle of 3 rounds");
        rows.add("to the last patch", 12.3456, "s");
        rows
    }

    fn as_json(name: &str, value: impl Serialize, unit: &str, note: &str) -> serde_json::Value {
        json!({"part": "fan-out", "name": name, "value": value, "unit": unit, "note": note})
    }

    #[test]
    fn a_table_has_aligned_columns() {
        let expected = "\
PART      WHAT                       VALUE   UNIT       NOTE
fan-out   requests of the operator    1004   requests
fan-out   ratio                       1.50   ×          the middle of 3 rounds
fan-out   to the last patch          12.35   s
";
        assert_eq!(rows().table(), expected);
    }

    #[test]
    fn the_json_has_the_rows_the_time_and_the_failures() {
        let mut results = Results::since("2026-01-02T03:04:05Z".parse().unwrap());
        results.add(rows());
        results.add_failure("rollback", "no pods".to_owned());
        let found: serde_json::Value = serde_json::from_str(&results.json().unwrap()).unwrap();
        let expected = json!({
            "time": "2026-01-02T03:04:05Z",
            "rows": [
                as_json("requests of the operator", 1004, "requests", ""),
                as_json("ratio", 1.5, "×", "the middle of 3 rounds"),
                as_json("to the last patch", 12.3456, "s", ""),
            ],
            "failed": [{"part": "rollback", "cause": "no pods"}],
        });
        assert_eq!(found, expected);
        assert_eq!(results.failed_parts(), ["rollback"]);
    }

    #[test]
    fn retries_are_a_number_even_if_there_were_none() {
        let mut rows = Rows::of("change");
        rows.add_retries(0);
        assert_eq!(rows.rows[0].value, Value::Count(0));
    }

    #[test]
    fn only_a_number_with_retries_has_a_note_of_them() {
        assert_eq!(sent_again(0), "");
        assert_eq!(sent_again(1), "1 request sent again meanwhile");
        assert_eq!(sent_again(2), "2 requests sent again meanwhile");
    }
}
