//! Comma-separated values (RFC 4180), whose first line names the columns.

use csv_core::{ReadRecordResult, Reader};

use super::fields::Fields;

/// The state between the lines: where the wanted fields are.
#[derive(Debug)]
pub(super) struct CsvLines {
    /// For each column of the file the index of its field, from the first line.
    header: Option<Vec<Option<usize>>>,
    reader: Reader,
    output: Vec<u8>,
    ends: Vec<usize>,
}

impl CsvLines {
    pub(super) fn new() -> Self {
        Self { header: None, reader: Reader::new(), output: Vec::new(), ends: Vec::new() }
    }

    /// Reads the fields of one line, and returns whether it is a record; the first line is not.
    pub(super) fn read(&mut self, line: &str, fields: &mut Fields) -> Result<bool, String> {
        let count = self.split(line)?;
        let text = |column: usize| {
            let start = column.checked_sub(1).and_then(|previous| self.ends.get(previous)).copied().unwrap_or(0);
            let end = self.ends.get(column).copied().unwrap_or(start);
            self.output.get(start..end).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or("")
        };
        let Some(header) = &self.header else {
            self.header = Some((0..count).map(|column| fields.index_of(text(column).trim())).collect());
            return Ok(false);
        };
        if count != header.len() {
            return Err(format!("it has {count} fields, and the first line has {}", header.len()));
        }
        for (column, field) in header.iter().enumerate() {
            if let Some(field) = field {
                fields.set(*field, text(column));
            }
        }
        Ok(true)
    }

    /// Splits a line into `output`, and returns the number of its fields, whose ends are in `ends`.
    fn split(&mut self, line: &str) -> Result<usize, String> {
        self.reader.reset();
        // One more than the line can fill: the reader stops when either is full.
        self.output.resize(line.len() + 1, 0);
        self.ends.resize(line.len() + 2, 0);
        let (mut input, mut written, mut count) = (line.as_bytes(), 0, 0);
        loop {
            let (output, ends) = (self.output.get_mut(written..), self.ends.get_mut(count..));
            let (Some(output), Some(ends)) = (output, ends) else { return Err("it cannot be split".to_owned()) };
            let (result, read, more_written, more) = self.reader.read_record(input, output, ends);
            input = input.get(read..).unwrap_or(&[]);
            (written, count) = (written + more_written, count + more);
            match result {
                // The next call has an empty input, which ends the record.
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::Record | ReadRecordResult::End => return Ok(count),
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    return Err("it cannot be split".to_owned());
                }
            }
        }
    }
}
