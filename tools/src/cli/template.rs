//! The format of a record as kcat writes it.

/// A parsed `-f` format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// In order.
    pub parts: Vec<Part>,
}

/// A part of a [`Template`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Printed as it is.
    Text(String),
    /// `%t`
    Topic,
    /// `%p`
    Partition,
    /// `%o`
    Offset,
    /// `%k`
    Key,
    /// `%s`
    Value,
    /// `%T`
    Timestamp,
    /// `%h`
    Headers,
}

impl Template {
    /// Reads a format.
    ///
    /// # Errors
    /// A sentence that names what stands for nothing.
    pub fn parse(text: &str) -> Result<Template, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let part = match (
                c,
                if matches!(c, '%' | '\\') {
                    chars.next()
                } else {
                    None
                },
            ) {
                ('%', Some('t')) => Part::Topic,
                ('%', Some('p')) => Part::Partition,
                ('%', Some('o')) => Part::Offset,
                ('%', Some('k')) => Part::Key,
                ('%', Some('s')) => Part::Value,
                ('%', Some('T')) => Part::Timestamp,
                ('%', Some('h')) => Part::Headers,
                ('%', Some('%')) => {
                    plain.push('%');
                    continue;
                }
                ('\\', Some('n')) => {
                    plain.push('\n');
                    continue;
                }
                ('\\', Some('t')) => {
                    plain.push('\t');
                    continue;
                }
                ('\\', Some('\\')) => {
                    plain.push('\\');
                    continue;
                }
                ('%' | '\\', Some(other)) => {
                    return Err(format!(
                        "`{c}{other}` is none of %t %p %o %k %s %T %h %% \\n \\t \\\\"
                    ));
                }
                ('%' | '\\', None) => return Err(format!("nothing follows the last `{c}`")),
                _ => {
                    plain.push(c);
                    continue;
                }
            };
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(part);
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Template { parts })
    }
}
