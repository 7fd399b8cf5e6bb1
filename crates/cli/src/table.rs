//! Aligned columns, as kubectl prints them.

use std::fmt::Write;

use anstyle::Style;

/// Between two columns.
const GAP: usize = 3;

/// One cell: what it says, and how it is coloured on a terminal.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), style: Style::new() }
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
        let shown: Vec<usize> = (0..self.header.len()).filter(|column| self.has_content(*column)).collect();
        let widths: Vec<usize> = shown.iter().map(|column| self.width(*column)).collect();
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
        let _ = write!(text, "{}{}{:#}", cell.style, cell.text, cell.style);
        owed = width + GAP - cell.width();
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
}
