//! Aligned columns, as kubectl prints them.

use std::borrow::Cow;
use std::fmt::Write;

use anstyle::Style;

use crate::output::harmless;

/// Between two columns.
const GAP: usize = 3;
/// No column is cut to less: what is left would tell nobody anything.
const MIN_WIDTH: usize = 8;

/// One cell: what it says, and how it is coloured on a terminal.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: harmless(&text.into()).into_owned(), style }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(text, Style::new())
    }
}

/// Rows below a header. Columns in which every row is empty are left out.
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        self.rows.push(cells.into());
    }

    /// Only some of the columns.
    #[must_use]
    pub(crate) fn columns(mut self, shown: std::ops::Range<usize>) -> Self {
        self.header = self.header[shown.clone()].to_vec();
        for row in &mut self.rows {
            *row = row[shown.clone()].to_vec();
        }
        self
    }

    pub(crate) fn render(&self) -> String {
        self.render_within(None)
    }

    /// No wider than this, as far as that is possible: the longest cells are cut.
    pub(crate) fn render_within(&self, limit: Option<usize>) -> String {
        let shown: Vec<usize> = (0..self.header.len()).filter(|column| self.has_content(*column)).collect();
        let mut widths: Vec<usize> = shown.iter().map(|column| self.width(*column)).collect();
        if let Some(limit) = limit {
            let least: Vec<usize> = shown.iter().map(|column| self.least_width(*column)).collect();
            shrink(&mut widths, &least, limit);
        }
        let header = shown.iter().map(|column| Cell::from(self.header[*column])).collect::<Vec<_>>();
        let mut text = line(header.iter(), &widths);
        for row in &self.rows {
            text += &line(shown.iter().filter_map(|column| row.get(*column)), &widths);
        }
        text
    }

    fn has_content(&self, column: usize) -> bool {
        column == 0 || self.rows.iter().any(|row| row.get(column).is_some_and(|cell| !cell.text.is_empty()))
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column)).map(Cell::width);
        cells.max().unwrap_or(0).max(self.header[column].chars().count())
    }

    fn least_width(&self, column: usize) -> usize {
        self.header[column].chars().count().max(MIN_WIDTH)
    }
}

/// Takes from the widest columns until all fit, or none can give more.
fn shrink(widths: &mut [usize], least: &[usize], limit: usize) {
    let gaps = GAP * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > limit {
        let can_give = (0..widths.len()).filter(|column| widths[*column] > least[*column]);
        let Some(widest) = can_give.max_by_key(|column| widths[*column]) else { return };
        widths[widest] -= 1;
    }
}

/// The text in so many characters: the beginning and the end of a name say most.
fn cut(text: &str, width: usize) -> Cow<'_, str> {
    let length = text.chars().count();
    if length <= width {
        return Cow::Borrowed(text);
    }
    let kept = width.saturating_sub(1);
    let head = kept.div_ceil(2);
    let (start, end) = (text.chars().take(head), text.chars().skip(length - (kept - head)));
    Cow::Owned(start.chain(['…']).chain(end).collect())
}

fn line<'a>(cells: impl Iterator<Item = &'a Cell>, widths: &[usize]) -> String {
    let mut text = String::new();
    let mut owed = 0;
    for (cell, width) in cells.zip(widths) {
        if cell.text.is_empty() {
            owed += width + GAP;
            continue;
        }
        text += &" ".repeat(owed);
        let shown = cut(&cell.text, *width);
        let _ = write!(text, "{}{shown}{:#}", cell.style, cell.style);
        owed = width + GAP - shown.chars().count();
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_ones_left_out() {
        let mut table = Table::new(&["NAME", "NEVER", "STATE"]);
        table.row(["a".into(), "".into(), "current".into()]);
        table.row(["long-name".into(), "".into(), "".into()]);
        assert_eq!(table.render(), "NAME        STATE\na           current\nlong-name\n");
    }

    #[test]
    fn the_longest_cells_give_way_and_keep_both_ends() {
        let mut table = Table::new(&["NAME", "STATE"]);
        table.row(["configmap/a-name-that-nobody-can-read".into(), "current".into()]);
        table.row(["b".into(), "held".into()]);
        let shown = "NAME               STATE\nconfigma…an-read   current\nb                  held\n";
        assert_eq!(table.render_within(Some(26)), shown);
        assert_eq!(table.render_within(Some(200)), table.render());
    }

    #[test]
    fn a_table_stays_readable_however_narrow_the_terminal() {
        let mut table = Table::new(&["NAME", "CONSUMERS"]);
        table.row(["a-name-that-is-long".into(), "12".into()]);
        assert_eq!(table.render_within(Some(1)), "NAME       CONSUMERS\na-na…ong   12\n");
    }

    #[test]
    fn a_cell_has_one_line() {
        let mut table = Table::new(&["WHY"]);
        table.row(["one\ntwo".into()]);
        assert_eq!(table.render(), "WHY\none\\ntwo\n");
    }
}
