//! CEL: rules over all values of a config, old and new.
//!
//! The interpreter has no limits of its own, and ends the process where it is not finished or its stack is. So an expression is short,
//! has few signs, and uses what is known to work; and before it is evaluated, [`Estimate`] says how much work it is at most.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex};

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators};
use cel::extractors::This;
use cel::objects::Map;
use cel::parser::Parser;
use cel::{Context, ExecutionError, IdedExpr, Value};

use super::patterns::Pattern;
use super::{Data, Invalid, Rule, shown};

/// The length of an expression.
pub const MAX_LENGTH: usize = 10_000;
/// How many brackets, operators and other signs an expression may have, those within its texts included: an upper bound of how deep the
/// parser calls itself, whatever the expression means.
const MAX_SIGNS: usize = 400;
/// How much work an expression may be. One unit is a byte or an item that is touched: about a nanosecond.
const MAX_WORK: u64 = 200_000_000;
/// How much work all of a policy's expressions may be together.
const MAX_WORK_OF_ALL: u64 = 1_000_000_000;
/// The work of evaluating a part of an expression, whatever it does.
const STEP_WORK: u64 = 100;
/// The work of compiling a pattern and giving up on it, and of matching one byte.
const PATTERN_WORK: u64 = 10_000_000;
const MATCH_WORK: u64 = 8;

const FUNCTIONS: [&str; 12] =
    ["size", "contains", "startsWith", "endsWith", "matches", "string", "bytes", "int", "uint", "double", "min", "max"];

/// Whether an expression may be used at all.
pub fn check(expression: &str) -> Result<(), String> {
    let program = parse(expression)?;
    Estimate::new(Size::default(), Size::default()).visit(&program, 1).map(drop)
}

pub fn check_all(rules: &[Rule], new: &Data<'_>, old: Option<&Data<'_>>) -> Result<(), Invalid> {
    if rules.is_empty() {
        return Ok(());
    }
    let none = Data(BTreeMap::new());
    let (data, old_data) = (texts(new), texts(old.unwrap_or(&none)));
    let sizes = (Size::of(&data), Size::of(&old_data));
    let mut context = Context::default();
    context.add_function("matches", matcher());
    context.add_variable_from_value("data", map(data));
    context.add_variable_from_value("oldData", map(old_data));
    let mut work_left = MAX_WORK_OF_ALL;
    rules.iter().try_for_each(|rule| check_rule(rule, &context, sizes, &mut work_left))
}

fn check_rule(
    rule: &Rule,
    context: &Context<'_>,
    (data, old_data): (Size, Size),
    work_left: &mut u64,
) -> Result<(), Invalid> {
    let unevaluable = |fault| Invalid::Unevaluable { rule: shown(&rule.expression), fault };
    let program = parse(&rule.expression).map_err(unevaluable)?;
    let mut estimate = Estimate::new(data, old_data);
    estimate.visit(&program, 1).map_err(unevaluable)?;
    if estimate.work > MAX_WORK {
        return Err(unevaluable("with a config of this size it would take too long".to_owned()));
    }
    let Some(rest) = work_left.checked_sub(estimate.work) else {
        return Err(unevaluable(
            "with a config of this size the policy's rules together would take too long".to_owned(),
        ));
    };
    *work_left = rest;
    match context.resolve(&program) {
        Ok(Value::Bool(true)) => Ok(()),
        Ok(Value::Bool(false)) => Err(Invalid::Unmet {
            rule: shown(&rule.expression),
            message: rule.message.clone().unwrap_or_else(|| "it is false for this content".to_owned()),
        }),
        Ok(_) => Err(unevaluable("its result is neither true nor false".to_owned())),
        Err(error) => Err(unevaluable(reason(&error, &rule.expression))),
    }
}

fn texts(data: &Data<'_>) -> BTreeMap<String, String> {
    let text = |value| std::str::from_utf8(value).ok().map(str::to_owned);
    data.0.iter().filter_map(|(key, value)| Some(((*key).to_owned(), text(value)?))).collect()
}

/// As the interpreter has it. In which order it goes through the keys is chance, as CEL allows: what depends on that is no rule.
fn map(texts: BTreeMap<String, String>) -> Value {
    Value::Map(Map { map: Arc::new(texts.into_iter().map(|(key, text)| (key.into(), text.into())).collect()) })
}

fn parse(expression: &str) -> Result<IdedExpr, String> {
    if expression.len() > MAX_LENGTH {
        return Err(format!("it has {} bytes, and at most {MAX_LENGTH} are allowed", expression.len()));
    }
    let signs = signs(expression);
    if signs > MAX_SIGNS {
        return Err(format!("it has {signs} brackets, operators and other signs, and at most {MAX_SIGNS} are allowed"));
    }
    // The parser panics at its own limit, which is out of reach here.
    let parsed = Parser::new().max_recursion_depth(u16::MAX - 1).parse(expression);
    parsed.map_err(|errors| match errors.errors.first() {
        Some(error) => format!("line {}, column {}: {}", error.pos.0, error.pos.1, shown(&error.msg)),
        None => "it is not CEL".to_owned(),
    })
}

fn signs(expression: &str) -> usize {
    let is_word = |char: char| char.is_alphanumeric() || char == '_';
    let signs = expression.chars().filter(|char| !is_word(*char) && !char.is_whitespace()).count();
    signs + expression.split(|char| !is_word(char)).filter(|word| *word == "in").count()
}

/// Patterns are compiled once, whatever the number of texts that they are compared with.
fn matcher() -> impl Fn(This<Arc<String>>, Arc<String>) -> Result<bool, ExecutionError> + Send + Sync + 'static {
    let compiled = Mutex::new(BTreeMap::<Arc<String>, Pattern>::new());
    move |This(text): This<Arc<String>>, pattern: Arc<String>| {
        let failed = |fault: &str| ExecutionError::function_error("matches", fault);
        let mut compiled = compiled.lock().map_err(|_| failed("poisoned"))?;
        let pattern = match compiled.entry(pattern) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let pattern = Pattern::new(new.key()).map_err(|_| failed("malformed pattern"))?;
                new.insert(pattern)
            }
        };
        pattern.is_match(&text).ok_or_else(|| failed("costly pattern"))
    }
}

/// What went wrong, in words of the expression: the interpreter's own contain values.
fn reason(error: &ExecutionError, expression: &str) -> String {
    match error {
        // A key may have been looked up that is itself a value.
        ExecutionError::NoSuchKey(key) if expression.contains(key.as_str()) => {
            format!("there is no key {key}; has() and `in` ask whether there is one")
        }
        ExecutionError::NoSuchKey(_) => "it looks up a key that is not there".to_owned(),
        ExecutionError::UndeclaredReference(name) if expression.contains(name.as_str()) => {
            format!("{name} is not known")
        }
        ExecutionError::FunctionError { function, .. } if expression.contains(function.as_str()) => {
            format!("{function}() cannot use what it was given")
        }
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "it divides by zero".to_owned(),
        ExecutionError::Overflow(..) => "a number is too large".to_owned(),
        ExecutionError::IndexOutOfBounds(_) => "it looks up an item that a list does not have".to_owned(),
        _ => "an operation does not fit the type of a value; values are text, which int() and double() convert"
            .to_owned(),
    }
}

/// How large a value is at most. A number or a truth has no size.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    /// How many items it has, and the most that a list or map within it has.
    items: u64,
    inner_items: u64,
    /// The bytes of its largest item.
    item: u64,
    /// All its bytes.
    bytes: u64,
}

impl Size {
    fn of(texts: &BTreeMap<String, String>) -> Self {
        let length = |text: &String| text.len() as u64;
        let bytes = |(key, value): (&String, &String)| length(key) + length(value);
        let item = texts.iter().map(|(key, value)| length(key).max(length(value))).max();
        Self {
            items: texts.len() as u64,
            inner_items: 0,
            item: item.unwrap_or(0),
            bytes: texts.iter().map(bytes).sum(),
        }
    }

    fn text(bytes: usize) -> Self {
        Self { bytes: bytes as u64, ..Self::default() }
    }

    /// One of its items.
    fn element(self) -> Self {
        Self { items: self.inner_items, bytes: self.item, ..self }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            items: self.items.saturating_add(other.items),
            inner_items: self.inner_items.max(other.inner_items),
            item: self.item.max(other.item),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            items: self.items.max(other.items),
            inner_items: self.inner_items.max(other.inner_items),
            item: self.item.max(other.item),
            bytes: self.bytes.max(other.bytes),
        }
    }

    fn times(self, count: u64) -> Self {
        Self { items: self.items.saturating_mul(count), bytes: self.bytes.saturating_mul(count), ..self }
    }

    fn work(self) -> u64 {
        self.items.saturating_add(self.bytes)
    }

    /// A list of such values.
    fn list(elements: &[Self]) -> Self {
        let largest = elements.iter().copied().fold(Self::default(), Self::or);
        let bytes = elements.iter().fold(0, |sum: u64, element| sum.saturating_add(element.bytes));
        let inner_items = largest.items.max(largest.inner_items);
        Self { items: elements.len() as u64, inner_items, item: largest.bytes.max(largest.item), bytes }
    }
}

/// Walks an expression, refuses what the interpreter does not know, and adds up the work.
struct Estimate {
    variables: Vec<(String, Size)>,
    work: u64,
}

impl Estimate {
    fn new(data: Size, old_data: Size) -> Self {
        Self { variables: vec![("data".to_owned(), data), ("oldData".to_owned(), old_data)], work: 0 }
    }

    fn charge(&mut self, times: u64, work: u64) {
        self.work = self.work.saturating_add(times.saturating_mul(work));
    }

    /// The size of the result of an expression that is evaluated so many times.
    fn visit(&mut self, expr: &IdedExpr, times: u64) -> Result<Size, String> {
        self.charge(times, STEP_WORK);
        match &expr.expr {
            Expr::Literal(LiteralValue::String(text)) => Ok(Size::text(text.inner().len())),
            Expr::Literal(LiteralValue::Bytes(bytes)) => Ok(Size::text(bytes.inner().len())),
            Expr::Literal(_) => Ok(Size::default()),
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => {
                let size = self.visit(&select.operand, times)?.element();
                let size = if select.test { Size::default() } else { size };
                self.charge(times, size.work());
                Ok(size)
            }
            Expr::List(list) => self.list(list.elements.iter(), times),
            Expr::Map(map) => {
                let entries = map.entries.iter().filter_map(|entry| match &entry.expr {
                    EntryExpr::MapEntry(entry) => Some([&entry.key, &entry.value]),
                    EntryExpr::StructField(_) => None,
                });
                self.list(entries.flatten(), times)
            }
            Expr::Call(call) => self.call(call, times),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, times),
            Expr::Struct(_) | Expr::Unspecified => Err("objects of a type are not supported".to_owned()),
        }
    }

    fn variable(&self, name: &str) -> Result<Size, String> {
        let found = self.variables.iter().rev().find(|(variable, _)| variable == name);
        found.map(|(_, size)| *size).ok_or_else(|| format!("{name} is not known; data and oldData are"))
    }

    fn list<'e>(&mut self, elements: impl Iterator<Item = &'e IdedExpr>, times: u64) -> Result<Size, String> {
        let sizes = elements.map(|element| self.visit(element, times)).collect::<Result<Vec<_>, _>>()?;
        let size = Size::list(&sizes);
        self.charge(times, size.work());
        Ok(size)
    }

    fn call(&mut self, call: &CallExpr, times: u64) -> Result<Size, String> {
        let arguments = call.target.as_deref().into_iter().chain(&call.args);
        let sizes = arguments.map(|argument| self.visit(argument, times)).collect::<Result<Vec<_>, _>>()?;
        let all = sizes.iter().copied().fold(Size::default(), Size::plus);
        let largest = sizes.iter().copied().fold(Size::default(), Size::or);
        let first = sizes.first().copied().unwrap_or_default();
        let (work, result) = match call.func_name.as_str() {
            operators::CONDITIONAL => (0, largest),
            operators::INDEX => (first.item, first.element()),
            operators::IN => {
                let container = sizes.last().copied().unwrap_or_default();
                (container.items.saturating_mul(1 + first.bytes.min(container.item)), Size::default())
            }
            operators::ADD => (all.work(), all),
            "matches" => {
                (self.pattern_work(call, times)?.saturating_add(all.bytes.saturating_mul(MATCH_WORK)), Size::default())
            }
            // A number as text is short.
            "string" | "bytes" => (all.work(), all.plus(Size::text(32))),
            "min" | "max" => (all.work(), largest),
            name if is_operator(name) || FUNCTIONS.contains(&name) => (all.work(), Size::default()),
            name => return Err(format!("{name} is not known; there are {}", FUNCTIONS.join(", "))),
        };
        self.charge(times, work.saturating_add(result.work()));
        Ok(result)
    }

    /// A pattern that stands in the expression is compiled once.
    fn pattern_work(&mut self, call: &CallExpr, times: u64) -> Result<u64, String> {
        let Some(Expr::Literal(LiteralValue::String(pattern))) = call.args.last().map(|argument| &argument.expr) else {
            return Ok(PATTERN_WORK);
        };
        Pattern::new(pattern.inner())?;
        self.charge(times.min(1), PATTERN_WORK);
        Ok(0)
    }

    fn comprehension(&mut self, comprehension: &ComprehensionExpr, times: u64) -> Result<Size, String> {
        let ComprehensionExpr { iter_range, iter_var, accu_var, accu_init, loop_cond, loop_step, result, .. } =
            comprehension;
        let start = self.visit(accu_init, times)?;
        let range = self.visit(iter_range, times)?;
        let (count, steps) = (range.items, times.saturating_mul(range.items));
        self.variables.push((iter_var.clone(), range.element()));
        self.variables.push((accu_var.clone(), start));
        self.visit(loop_cond, steps)?;
        let step = self.visit(loop_step, steps)?;
        // What is gathered is copied with each step.
        let gathered = start.plus(step.times(count));
        self.charge(steps, gathered.work());
        if let Some((_, size)) = self.variables.last_mut() {
            *size = gathered;
        }
        let size = self.visit(result, times)?;
        self.charge(times, size.work());
        self.variables.truncate(self.variables.len() - 2);
        Ok(size)
    }
}

fn is_operator(name: &str) -> bool {
    use operators::{
        DIVIDE, EQUALS, GREATER, GREATER_EQUALS, LESS, LESS_EQUALS, LOGICAL_AND, LOGICAL_NOT, LOGICAL_OR, MODULO,
        MULTIPLY, NEGATE, NOT_EQUALS, NOT_STRICTLY_FALSE, SUBSTRACT,
    };
    let known = [
        LOGICAL_AND,
        LOGICAL_OR,
        LOGICAL_NOT,
        NOT_STRICTLY_FALSE,
        EQUALS,
        NOT_EQUALS,
        LESS,
        LESS_EQUALS,
        GREATER,
        GREATER_EQUALS,
        SUBSTRACT,
        MULTIPLY,
        DIVIDE,
        MODULO,
        NEGATE,
    ];
    known.contains(&name)
}
