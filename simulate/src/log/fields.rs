/// The texts of the fields that a parser looks for in one line, by name.
///
/// The allocations of one line are reused for the next.
#[derive(Debug)]
pub(super) struct Fields {
    names: Vec<String>,
    texts: Vec<String>,
    found: Vec<bool>,
}

impl Fields {
    /// Creates fields with these names, each name once.
    pub(super) fn new<'a>(wanted: impl IntoIterator<Item = &'a str>) -> Self {
        let mut names: Vec<String> = Vec::new();
        for name in wanted {
            if !names.iter().any(|other| other == name) {
                names.push(name.to_owned());
            }
        }
        let (texts, found) = (vec![String::new(); names.len()], vec![false; names.len()]);
        Self { names, texts, found }
    }

    pub(super) fn clear(&mut self) {
        self.found.fill(false);
    }

    pub(super) fn index_of(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|other| other == name)
    }

    pub(super) fn name(&self, index: usize) -> &str {
        self.names.get(index).map_or("", |name| name)
    }

    /// Sets the text of a field. Of a field that occurs twice, the last text counts.
    pub(super) fn set(&mut self, index: usize, text: &str) {
        if let (Some(slot), Some(found)) = (self.texts.get_mut(index), self.found.get_mut(index)) {
            slot.clear();
            slot.push_str(text);
            *found = true;
        }
    }

    /// Returns the text of a field that the line has.
    pub(super) fn get(&self, index: usize) -> Option<&str> {
        let is_found = self.found.get(index).copied().unwrap_or(false);
        self.texts.get(index).filter(|_| is_found).map(String::as_str)
    }

    /// Returns the text of a field that the line has, by its name.
    pub(super) fn get_named(&self, name: &str) -> Option<&str> {
        self.index_of(name).and_then(|index| self.get(index))
    }

    /// Returns the texts of the first fields, or the name of the first of these fields that the line does not have.
    pub(super) fn all_up_to(&self, end: usize) -> Result<&[String], &str> {
        match (0..end).find(|&index| self.get(index).is_none()) {
            None => Ok(self.texts.get(..end).unwrap_or(&[])),
            Some(missing) => Err(self.name(missing)),
        }
    }
}
