//! Decodes a statement into an action, checking every modifier. Read next: `program.rs`, the actions.

use super::error::ParseErrorKind;
use super::lanes::{Convert, Lanes, Rounding, lanes, lanes_of};
use super::modifiers::Modifiers;
use super::program::{Access, Action, Address, Join, MatrixType, Reg, Shuffle, Space, Update, Vote};
use super::run::{CONSTANT_WINDOW, LOCAL_WINDOW, SHARED_WINDOW};
use super::statement::{Level, Operand, Statement};
use super::types::Type;

type Decoded<T = Action> = Result<T, ParseErrorKind>;

/// Decodes a statement. Errors: `Unsupported` for unknown opcodes and modifiers, `Newer` for instructions that the module's
/// version or target does not have.
pub(super) fn decode(statement: &Statement) -> Decoded {
    let (opcode, modifiers) = Modifiers::split(statement.word);
    let mut decoder = Decoder { opcode, modifiers, statement };
    let action = decoder.action()?;
    if !decoder.modifiers.none_left() {
        return Err(unsupported());
    }
    match statement.level.missing(&action) {
        Some(Level { version, target }) => Err(ParseErrorKind::Newer { statement: String::new(), version, target }),
        None => Ok(action),
    }
}

/// An error whose text the caller fills in.
fn unsupported() -> ParseErrorKind {
    ParseErrorKind::Unsupported(String::new())
}

const SPACES: [(&str, Space); 7] = [
    ("global", Space::Global),
    ("shared", Space::Shared),
    ("shared::cta", Space::Shared),
    ("local", Space::Local),
    ("param", Space::Parameter),
    ("const", Space::Constant),
    ("param::entry", Space::Parameter),
];

/// Cache hints, which do not change results.
const CACHE_HINTS: [&str; 9] = ["nc", "ca", "cg", "cs", "cv", "lu", "wb", "wt", "weak"];
const CACHE_PREFIXES: [&str; 2] = ["L1::", "L2::"];
const SCOPES: [&str; 4] = ["cta", "cluster", "gpu", "sys"];
const ORDERS: [&str; 6] = ["volatile", "relaxed", "acquire", "release", "acq_rel", "sc"];

struct Decoder<'s, 'a> {
    opcode: &'a str,
    modifiers: Modifiers<'a>,
    statement: &'s Statement<'a>,
}

impl Decoder<'_, '_> {
    fn action(&mut self) -> Decoded {
        match self.opcode {
            "mov" => self.move_or_pack(),
            "ld" | "ldu" => self.load_or_store(true),
            "st" => self.load_or_store(false),
            "atom" | "red" => self.atomic(),
            "cvta" => self.cvta(),
            "cvt" => self.convert(),
            "setp" => self.compare(),
            "cp" => self.copy_async(),
            "ldmatrix" => self.load_matrix(),
            "mma" => self.multiply(),
            "shfl" => self.shuffle(),
            "vote" => self.vote(),
            "match" => self.matching(),
            "redux" => self.reduce(),
            "activemask" => {
                self.modifiers.types();
                Ok(Action::ActiveMask(self.register(0)?))
            }
            "bar" | "barrier" => self.barrier(),
            "membar" | "fence" | "prefetch" | "prefetchu" | "nanosleep" | "discard" => {
                self.modifiers.ignore(&["global", "gl", "u32", "L1", "L2"]);
                self.modifiers.ignore(&SCOPES);
                self.modifiers.ignore(&ORDERS);
                Ok(Action::Nothing)
            }
            "bra" => {
                self.modifiers.take("uni");
                match self.statement.operands.last() {
                    Some(Operand::Label(_)) => Ok(Action::Branch(usize::MAX)),
                    _ => Err(unsupported()),
                }
            }
            "ret" | "exit" => {
                self.modifiers.take("uni");
                Ok(Action::Return)
            }
            "trap" => Ok(Action::Trap),
            _ => self.compute(),
        }
    }

    fn operand(&self, index: usize) -> Decoded<&Operand> {
        self.statement.operands.get(index).ok_or(ParseErrorKind::Expected("another operand"))
    }

    fn register(&self, index: usize) -> Decoded<Reg> {
        match self.operand(index)? {
            Operand::Register(reg) => Ok(*reg),
            _ => Err(ParseErrorKind::Expected("a register or a number")),
        }
    }

    /// A predicate, and whether it is negated.
    fn predicate(&self, index: usize) -> Decoded<(Reg, bool)> {
        match self.operand(index)? {
            Operand::Register(reg) => Ok((*reg, false)),
            Operand::Negated(reg) => Ok((*reg, true)),
            _ => Err(ParseErrorKind::Expected("a predicate")),
        }
    }

    /// The registers of a vector with this many parts; a single register is a vector of one.
    fn vector(&self, index: usize, parts: usize) -> Decoded<Vec<Reg>> {
        let regs = match self.operand(index)? {
            Operand::Register(reg) => vec![*reg],
            Operand::Vector(regs) => regs.clone(),
            _ => return Err(ParseErrorKind::Expected("a vector")),
        };
        if regs.len() == parts { Ok(regs) } else { Err(ParseErrorKind::Expected("a different number of parts")) }
    }

    fn address(&self, index: usize, space: Space) -> Decoded<Address> {
        match self.operand(index)? {
            Operand::Memory { base, offset } => Ok(Address { space, base: *base, offset: *offset }),
            _ => Err(ParseErrorKind::Expected("an address")),
        }
    }

    fn count(&self, operands: usize) -> Decoded<()> {
        if self.statement.operands.len() == operands { Ok(()) } else { Err(unsupported()) }
    }

    /// The only type of an instruction.
    fn only_type(&mut self) -> Decoded<Type> {
        match self.modifiers.types()[..] {
            [ty] => Ok(ty),
            _ => Err(unsupported()),
        }
    }

    fn move_or_pack(&mut self) -> Decoded {
        let ty = self.only_type()?;
        self.count(2)?;
        let part_bits = |parts: usize| {
            let bits = ty.bits() / parts as u32;
            if matches!(bits, 8 | 16 | 32) { Ok(bits) } else { Err(unsupported()) }
        };
        match (self.operand(0)?, self.operand(1)?) {
            (Operand::Register(result), Operand::Vector(parts)) => {
                Ok(Action::Pack { result: *result, parts: parts.clone(), bits: part_bits(parts.len())? })
            }
            (Operand::Vector(parts), Operand::Register(operand)) => {
                Ok(Action::Unpack { parts: parts.clone(), operand: *operand, bits: part_bits(parts.len())? })
            }
            _ => self.lanewise(ty, "", 1),
        }
    }

    /// An action for a function that opcode, variant and type select.
    fn lanewise(&mut self, ty: Type, variant: &str, used: usize) -> Decoded {
        self.count(used + 1)?;
        let lanes = lanes_of(self.opcode, variant, ty).ok_or_else(unsupported)?;
        let first = self.register(1)?;
        let mut operands = [first; 4];
        for (index, operand) in operands.iter_mut().enumerate().take(used) {
            *operand = self.register(index + 1)?;
        }
        let flush = self.modifiers.take("ftz");
        let flops = match (self.opcode, ty) {
            ("fma", _) => 2,
            ("add" | "sub" | "mul", Type::F32 | Type::F64) => 1,
            _ => 0,
        };
        Ok(Action::Compute {
            lanes,
            result: self.register(0)?,
            operands,
            used,
            approximate: false,
            flush: flush && ty == Type::F32,
            saturate: self.modifiers.take("sat") && ty == Type::F32,
            flops,
        })
    }

    fn compute(&mut self) -> Decoded {
        let types = self.modifiers.types();
        let (first, last) = match types[..] {
            [ty] => (ty, ty),
            [first, last] => (first, last),
            _ => return Err(unsupported()),
        };
        // `popc` and similar have one type, `testp` has a property, the others have the type of the computation.
        if first != last {
            return Err(unsupported());
        }
        let inexact = self.modifiers.take("approx") | self.modifiers.take("full");
        let float = matches!(last, Type::F32 | Type::F64);
        let rounds = self.modifiers.take("rn");
        let half = matches!(last, Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2);
        let names = ["lo", "hi", "wide", "NaN", "finite", "infinite", "number", "notanumber", "l.wrap", "r.wrap"];
        let variant = match self.opcode {
            "shf" => {
                let left = self.modifiers.choose(&[("l", true), ("r", false)]).ok_or_else(unsupported)?;
                let wrap = self.modifiers.choose(&[("wrap", true), ("clamp", false)]).ok_or_else(unsupported)?;
                match (left, wrap) {
                    (true, true) => "l.wrap",
                    (true, false) => "l.clamp",
                    (false, true) => "r.wrap",
                    (false, false) => "r.clamp",
                }
            }
            _ => names.into_iter().find(|name| self.modifiers.take(name)).unwrap_or(""),
        };
        // Exact functions must have a rounding modifier, approximate ones must not.
        let exact = matches!(self.opcode, "div" | "sqrt" | "rcp") && float;
        let only_inexact = matches!(self.opcode, "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh");
        if (exact && !(rounds ^ inexact)) || (only_inexact && !inexact) || (rounds && !float && !half) {
            return Err(unsupported());
        }
        let used = match self.opcode {
            "neg" | "abs" | "not" | "popc" | "clz" | "brev" | "sqrt" | "rcp" | "testp" => 1,
            _ if only_inexact => 1,
            "mad" | "fma" | "selp" | "shf" | "bfe" | "prmt" | "sad" => 3,
            "bfi" | "lop3" => 4,
            _ => 2,
        };
        let mut action = self.lanewise(last, variant, used)?;
        if let Action::Compute { approximate, .. } = &mut action {
            *approximate = inexact;
        }
        Ok(action)
    }

    fn compare(&mut self) -> Decoded {
        let ty = self.only_type()?;
        let names = [
            "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu",
            "num", "nan",
        ];
        let how = names.into_iter().find(|name| self.modifiers.take(name)).ok_or_else(unsupported)?;
        let join = self.modifiers.choose(&[("and", Join::And), ("or", Join::Or), ("xor", Join::Xor)]);
        self.modifiers.take("ftz");
        let lanes = lanes_of("setp", how, ty).ok_or_else(unsupported)?;
        let operands = self.statement.operands.len().saturating_sub(join.is_some().into());
        let first = match operands {
            3 => 1,
            4 => 2,
            _ => return Err(unsupported()),
        };
        Ok(Action::Compare {
            lanes,
            result: self.register(0)?,
            opposite: if first == 2 { Some(self.register(1)?) } else { None },
            operands: [self.register(first)?, self.register(first + 1)?],
            join: join.unwrap_or(Join::None),
            with: if join.is_some() { self.predicate(first + 2)? } else { (self.statement.zero, false) },
        })
    }

    fn convert(&mut self) -> Decoded {
        if let Some(to) = self.modifiers.choose(&[("e4m3x2", Type::E4m3x2), ("e5m2x2", Type::E5m2x2)]) {
            return self.convert_to_bytes(to);
        }
        let types = self.modifiers.types();
        let [to, from] = types[..] else { return Err(unsupported()) };
        let whole =
            [("rni", Rounding::Nearest), ("rzi", Rounding::Zero), ("rmi", Rounding::Down), ("rpi", Rounding::Up)];
        let float = [("rn", Rounding::Nearest), ("rz", Rounding::Zero), ("rm", Rounding::Down), ("rp", Rounding::Up)];
        // Only single precision is rounded to TF32, with ties away from zero, and only TF32 uses this mode.
        let halves_away = self.modifiers.take("rna");
        if halves_away != (to == Type::Tf32) || (halves_away && from != Type::F32) {
            return Err(unsupported());
        }
        let to_whole = self.modifiers.choose(&whole);
        let rounding = to_whole.or_else(|| self.modifiers.choose(&float));
        let packed = matches!(to, Type::F16x2 | Type::Bf16x2);
        let rounds_twice = halves_away && rounding.is_some();
        let rounding = rounding.unwrap_or(Rounding::Nearest);
        let unknown =
            rounds_twice || matches!(from, Type::F16x2 | Type::Bf16x2 | Type::Tf32 | Type::Pred) || to == Type::Pred;
        if unknown || (packed && from != Type::F32) {
            return Err(unsupported());
        }
        let convert = Convert {
            to,
            from,
            rounding,
            whole: to_whole.is_some(),
            saturate: self.modifiers.take("sat"),
            flush: self.modifiers.take("ftz"),
            relu: self.modifiers.take("relu"),
        };
        self.count(if packed { 3 } else { 2 })?;
        let first = self.register(1)?;
        let second = if packed { self.register(2)? } else { first };
        Ok(Action::Convert { convert, result: self.register(0)?, operands: [first, second] })
    }

    /// `cvt.rn.satfinite.e4m3x2.f32` and the same with e5m2x2. Refuses all other conversions of 8-bit floats.
    fn convert_to_bytes(&mut self, to: Type) -> Decoded {
        let rounds = self.modifiers.take("rn") && self.modifiers.take("satfinite");
        if !rounds || self.only_type()? != Type::F32 || !self.statement.word.ends_with("x2.f32") {
            return Err(unsupported());
        }
        self.count(3)?;
        let convert = Convert {
            to,
            from: Type::F32,
            rounding: Rounding::Nearest,
            whole: false,
            saturate: false,
            flush: false,
            relu: false,
        };
        Ok(Action::Convert { convert, result: self.register(0)?, operands: [self.register(1)?, self.register(2)?] })
    }

    /// Converts between addresses of a space and generic ones: adds or subtracts the window.
    fn cvta(&mut self) -> Decoded {
        let to_space = self.modifiers.take("to");
        let window = match self.modifiers.choose(&SPACES).ok_or_else(unsupported)? {
            Space::Shared => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            Space::Constant => CONSTANT_WINDOW,
            Space::Global => 0,
            Space::Parameter | Space::Generic => return Err(unsupported()),
        };
        if self.only_type()?.bits() != 64 {
            return Err(unsupported());
        }
        self.count(2)?;
        let lanes: Lanes = match (window, to_space) {
            (SHARED_WINDOW, false) => lanes!(|a, _, _, _| a.wrapping_add(SHARED_WINDOW)),
            (SHARED_WINDOW, true) => lanes!(|a, _, _, _| a.wrapping_sub(SHARED_WINDOW)),
            (LOCAL_WINDOW, false) => lanes!(|a, _, _, _| a.wrapping_add(LOCAL_WINDOW)),
            (LOCAL_WINDOW, true) => lanes!(|a, _, _, _| a.wrapping_sub(LOCAL_WINDOW)),
            (CONSTANT_WINDOW, false) => lanes!(|a, _, _, _| a.wrapping_add(CONSTANT_WINDOW)),
            (CONSTANT_WINDOW, true) => lanes!(|a, _, _, _| a.wrapping_sub(CONSTANT_WINDOW)),
            _ => lanes!(|a, _, _, _| a),
        };
        Ok(Action::Compute {
            lanes,
            result: self.register(0)?,
            operands: [self.register(1)?; 4],
            used: 1,
            approximate: false,
            flush: false,
            saturate: false,
            flops: 0,
        })
    }

    fn space(&mut self) -> Space {
        self.modifiers.choose(&SPACES).unwrap_or(Space::Generic)
    }

    /// Takes cache hints, and returns whether the access is ordered with those of other threads.
    fn hints(&mut self) -> bool {
        self.modifiers.ignore(&CACHE_HINTS);
        self.modifiers.ignore_prefixes(&CACHE_PREFIXES);
        self.modifiers.ignore(&SCOPES);
        ORDERS.iter().fold(false, |strong, order| self.modifiers.take(order) | strong)
    }

    fn load_or_store(&mut self, load: bool) -> Decoded {
        let ty = self.only_type()?;
        let parts = self.modifiers.choose(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
        let space = self.space();
        let strong = self.hints();
        self.count(2)?;
        let (values, place) = if load { (0, 1) } else { (1, 0) };
        if ty == Type::Pred || parts * ty.bytes() as usize > 16 {
            return Err(unsupported());
        }
        let access = Access { address: self.address(place, space)?, ty, elements: self.vector(values, parts)?, strong };
        match (load, space) {
            (true, _) => Ok(Action::Load(access)),
            (false, Space::Parameter | Space::Constant) => Err(unsupported()),
            (false, _) => Ok(Action::Store(access)),
        }
    }

    fn atomic(&mut self) -> Decoded {
        let ty = self.only_type()?;
        let update = self.modifiers.choose(&[
            ("add", Update::Add),
            ("min", Update::Min),
            ("max", Update::Max),
            ("and", Update::And),
            ("or", Update::Or),
            ("xor", Update::Xor),
            ("exch", Update::Exchange),
            ("cas", Update::CompareAndSwap),
            ("inc", Update::Increment),
            ("dec", Update::Decrement),
        ]);
        let update = update.ok_or_else(unsupported)?;
        self.modifiers.take("noftz");
        let space = self.space();
        self.hints();
        let returns = self.opcode == "atom";
        let first = usize::from(returns);
        let operands = if update == Update::CompareAndSwap { 2 } else { 1 };
        self.count(first + 1 + operands)?;
        let float = matches!(ty, Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 | Type::F32 | Type::F64);
        let wide_enough = matches!(ty.bits(), 32 | 64) || (ty.bits() == 16 && update != Update::Exchange);
        if !wide_enough || ty == Type::Pred || (float && update != Update::Add) {
            return Err(unsupported());
        }
        Ok(Action::Atomic {
            address: self.address(first, space)?,
            ty,
            update,
            result: if returns { Some(self.register(0)?) } else { None },
            operands: [self.register(first + 1)?, self.register(first + operands)?],
        })
    }

    fn copy_async(&mut self) -> Decoded {
        if !self.modifiers.take("async") {
            return Err(unsupported());
        }
        if self.modifiers.take("commit_group") {
            self.count(0)?;
            return Ok(Action::CopyCommit);
        }
        if self.modifiers.take("wait_all") {
            self.count(0)?;
            return Ok(Action::CopyWait(None));
        }
        if self.modifiers.take("wait_group") {
            self.count(1)?;
            // The operand is a constant; its register is resolved when the kernel's constants are known.
            return Ok(Action::CopyWait(Some(self.register(0)?)));
        }
        let whole_lines = self.modifiers.choose(&[("cg", true), ("ca", false)]).ok_or_else(unsupported)?;
        let to_shared = self.modifiers.take("shared") | self.modifiers.take("shared::cta");
        if !to_shared || !self.modifiers.take("global") {
            return Err(unsupported());
        }
        self.modifiers.ignore_prefixes(&CACHE_PREFIXES);
        let source_bytes = match self.statement.operands.len() {
            3 => None,
            4 => Some(self.register(3)?),
            _ => return Err(unsupported()),
        };
        Ok(Action::CopyAsync {
            to: self.address(0, Space::Shared)?,
            from: self.address(1, Space::Global)?,
            whole_lines,
            bytes: self.register(2)?,
            source_bytes,
        })
    }

    fn load_matrix(&mut self) -> Decoded {
        let known = ["sync", "aligned", "m8n8"].into_iter().all(|name| self.modifiers.take(name));
        let matrices = self.modifiers.choose(&[("x1", 1), ("x2", 2), ("x4", 4)]).ok_or_else(unsupported)?;
        let transposed = self.modifiers.take("trans");
        let space = self.space();
        if !known || space != Space::Shared || self.only_type()? != Type::Bits(16) {
            return Err(unsupported());
        }
        self.count(2)?;
        Ok(Action::LoadMatrix { results: self.vector(0, matrices)?, address: self.address(1, space)?, transposed })
    }

    fn multiply(&mut self) -> Decoded {
        let named = ["sync", "aligned", "row", "col"].into_iter().all(|name| self.modifiers.take(name));
        // Only row-major left factors and column-major right factors are supported.
        let known = named && self.statement.word.contains(".row.col.");
        let shapes = [("m16n8k4", 4), ("m16n8k8", 8), ("m16n8k16", 16), ("m16n8k32", 32)];
        let inner = self.modifiers.choose(&shapes).ok_or_else(unsupported)?;
        // Of the result, both factors and the addend.
        let types = self.modifiers.values(&[
            ("f32", None),
            ("f16", Some(MatrixType::F16)),
            ("bf16", Some(MatrixType::Bf16)),
            ("tf32", Some(MatrixType::Tf32)),
            ("e4m3", Some(MatrixType::E4m3)),
            ("e5m2", Some(MatrixType::E5m2)),
        ]);
        let [None, Some(left), Some(right), None] = types[..] else { return Err(unsupported()) };
        let packed = [left, right].map(MatrixType::packed);
        // Registers of the left factor; the right one has half that number.
        let registers = match (packed, inner) {
            ([2, 2], 8) | ([1, 1], 4) => 2,
            ([2, 2], 16) | ([1, 1], 8) | ([4, 4], 32) => 4,
            _ => return Err(unsupported()),
        };
        if !known || (left != right && packed != [4, 4]) {
            return Err(unsupported());
        }
        self.count(4)?;
        let (d, c) = (self.vector(0, 4)?, self.vector(3, 4)?);
        let (a, b) = (self.vector(1, registers)?, self.vector(2, registers / 2)?);
        Ok(Action::Multiply { types: [left, right], inner, d, a, b, c })
    }

    fn shuffle(&mut self) -> Decoded {
        let from = self.modifiers.choose(&[
            ("up", Shuffle::Up),
            ("down", Shuffle::Down),
            ("bfly", Shuffle::Butterfly),
            ("idx", Shuffle::Index),
        ]);
        let from = from.ok_or_else(unsupported)?;
        if !self.modifiers.take("sync") || self.only_type()? != Type::Bits(32) {
            return Err(unsupported());
        }
        let first = match self.statement.operands.len() {
            5 => 1,
            6 => 2,
            _ => return Err(unsupported()),
        };
        Ok(Action::Shuffle {
            from,
            result: self.register(0)?,
            in_range: if first == 2 { Some(self.register(1)?) } else { None },
            operands: [
                self.register(first)?,
                self.register(first + 1)?,
                self.register(first + 2)?,
                self.register(first + 3)?,
            ],
        })
    }

    fn vote(&mut self) -> Decoded {
        let vote = self.modifiers.choose(&[
            ("all", Vote::All),
            ("any", Vote::Any),
            ("uni", Vote::Uniform),
            ("ballot", Vote::Ballot),
        ]);
        self.modifiers.types();
        let synchronous = self.modifiers.take("sync");
        self.count(3)?;
        let vote = vote.filter(|_| synchronous).ok_or_else(unsupported)?;
        Ok(Action::Vote { vote, result: self.register(0)?, predicate: self.predicate(1)?, mask: self.register(2)? })
    }

    fn matching(&mut self) -> Decoded {
        let all = self.modifiers.choose(&[("any", false), ("all", true)]).ok_or_else(unsupported)?;
        let bits = self.only_type()?.bits();
        if !self.modifiers.take("sync") {
            return Err(unsupported());
        }
        let agreed = match (self.statement.operands.len(), all) {
            (3, _) => None,
            (4, true) => Some(self.register(1)?),
            _ => return Err(unsupported()),
        };
        let first = 1 + usize::from(agreed.is_some());
        Ok(Action::Match {
            all,
            bits,
            result: self.register(0)?,
            agreed,
            value: self.register(first)?,
            mask: self.register(first + 1)?,
        })
    }

    fn reduce(&mut self) -> Decoded {
        let update = self.modifiers.choose(&[
            ("add", Update::Add),
            ("min", Update::Min),
            ("max", Update::Max),
            ("and", Update::And),
            ("or", Update::Or),
            ("xor", Update::Xor),
        ]);
        let ty = self.only_type()?;
        let synchronous = self.modifiers.take("sync");
        self.count(3)?;
        let update = update.filter(|_| synchronous && ty.bits() == 32).ok_or_else(unsupported)?;
        let signed = matches!(ty, Type::Signed(_));
        Ok(Action::Reduce {
            update,
            signed,
            result: self.register(0)?,
            value: self.register(1)?,
            mask: self.register(2)?,
        })
    }

    /// `bar.sync 0`, `barrier.sync.aligned 0` or `bar.warp.sync mask`. Refuses named and counted barriers.
    fn barrier(&mut self) -> Decoded {
        self.modifiers.take("cta");
        let warp = self.modifiers.take("warp");
        let synchronous = self.modifiers.take("sync");
        self.modifiers.take("aligned");
        self.count(1)?;
        let operand = self.register(0)?;
        match (synchronous, warp) {
            (true, true) => Ok(Action::WarpBarrier(operand)),
            (true, false) if operand == self.statement.zero => Ok(Action::Barrier),
            _ => Err(unsupported()),
        }
    }
}
