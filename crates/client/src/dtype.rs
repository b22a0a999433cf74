//! Element types.

/// Element type of a tensor. The discriminant is part of the stored type tag: never renumber, only append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum DType {
    /// One byte per element, 0 or 1.
    Bool = 0,
    /// Unsigned, 8 bits.
    U8 = 1,
    /// Unsigned, 16 bits.
    U16 = 2,
    /// Unsigned, 32 bits.
    U32 = 3,
    /// Unsigned, 64 bits.
    U64 = 4,
    /// Signed, 8 bits.
    I8 = 5,
    /// Signed, 16 bits.
    I16 = 6,
    /// Signed, 32 bits.
    I32 = 7,
    /// Signed, 64 bits.
    I64 = 8,
    /// IEEE half precision.
    F16 = 9,
    /// bfloat16.
    Bf16 = 10,
    /// IEEE single precision.
    F32 = 11,
    /// IEEE double precision.
    F64 = 12,
    /// Complex of two halves.
    C32 = 13,
    /// Complex of two singles.
    C64 = 14,
    /// Complex of two doubles.
    C128 = 15,
    /// float8, 4 exponent bits, finite.
    F8E4M3Fn = 16,
    /// float8, 4 exponent bits, finite, no negative zero.
    F8E4M3Fnuz = 17,
    /// float8, 5 exponent bits.
    F8E5M2 = 18,
    /// float8, 5 exponent bits, finite, no negative zero.
    F8E5M2Fnuz = 19,
    /// float8, exponent only.
    F8E8M0Fnu = 20,
    /// Two float4 values in one byte.
    F4E2M1FnX2 = 21,
}

/// A dtype name that is none of [`DType::ALL`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype {name:?}; known are {known}")]
pub struct UnknownDType {
    /// What was asked for.
    pub name: String,
    /// The names there are, joined by commas.
    pub known: String,
}

/// One row per dtype: itself, its name, bytes per element, DLPack code and bits.
type Row = (DType, &'static str, u64, u8, u8);

/// DLPack type codes (dlpack.h 1.1): int 0, uint 1, float 2, bfloat 4, complex 5, bool 6, float8 7 to 14, float4 17.
#[rustfmt::skip]
const ROWS: [Row; 22] = [
    (DType::Bool, "bool", 1, 6, 8),
    (DType::U8, "uint8", 1, 1, 8),
    (DType::U16, "uint16", 2, 1, 16),
    (DType::U32, "uint32", 4, 1, 32),
    (DType::U64, "uint64", 8, 1, 64),
    (DType::I8, "int8", 1, 0, 8),
    (DType::I16, "int16", 2, 0, 16),
    (DType::I32, "int32", 4, 0, 32),
    (DType::I64, "int64", 8, 0, 64),
    (DType::F16, "float16", 2, 2, 16),
    (DType::Bf16, "bfloat16", 2, 4, 16),
    (DType::F32, "float32", 4, 2, 32),
    (DType::F64, "float64", 8, 2, 64),
    (DType::C32, "complex32", 4, 5, 32),
    (DType::C64, "complex64", 8, 5, 64),
    (DType::C128, "complex128", 16, 5, 128),
    (DType::F8E4M3Fn, "float8_e4m3fn", 1, 10, 8),
    (DType::F8E4M3Fnuz, "float8_e4m3fnuz", 1, 11, 8),
    (DType::F8E5M2, "float8_e5m2", 1, 12, 8),
    (DType::F8E5M2Fnuz, "float8_e5m2fnuz", 1, 13, 8),
    (DType::F8E8M0Fnu, "float8_e8m0fnu", 1, 14, 8),
    (DType::F4E2M1FnX2, "float4_e2m1fn_x2", 1, 17, 4),
];

impl DType {
    /// Every dtype, in the order of its code.
    pub const ALL: &'static [Self] = &{
        let mut all = [Self::Bool; ROWS.len()];
        let mut index = 0;
        while index < ROWS.len() {
            all[index] = ROWS[index].0;
            index += 1;
        }
        all
    };

    /// torch's name without the module: `float32`, `bfloat16`, `float8_e4m3fn`, `bool`, ...
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The dtype of a name, with or without `torch.` before it.
    ///
    /// # Errors
    /// [`UnknownDType`] lists the known names.
    pub fn from_name(name: &str) -> Result<Self, UnknownDType> {
        let short = name.strip_prefix("torch.").unwrap_or(name);
        ROWS.iter()
            .find(|row| row.1 == short)
            .map(|row| row.0)
            .ok_or_else(|| UnknownDType {
                name: name.to_owned(),
                known: ROWS.iter().map(|row| row.1).collect::<Vec<_>>().join(", "),
            })
    }

    /// The dtype of a code in a stored type tag.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        ROWS.get(usize::from(code)).map(|row| row.0)
    }

    /// Code in a stored type tag.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Bytes per element (`float4_e2m1fn_x2`: per pair).
    #[must_use]
    pub fn item_bytes(self) -> u64 {
        self.row().2
    }

    /// DLPack's (code, bits, lanes).
    #[must_use]
    pub fn dlpack(self) -> (u8, u8, u16) {
        let row = self.row();
        (row.3, row.4, if self == Self::F4E2M1FnX2 { 2 } else { 1 })
    }

    fn row(self) -> &'static Row {
        &ROWS[usize::from(self.code())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_stands_at_its_own_code_and_its_name_leads_back() {
        for (code, dtype) in (0u8..).zip(DType::ALL.iter().copied()) {
            assert_eq!(dtype.code(), code);
            assert_eq!(DType::from_code(code), Some(dtype));
            assert_eq!(DType::from_name(dtype.name()), Ok(dtype));
            assert_eq!(DType::from_name(&format!("torch.{}", dtype.name())), Ok(dtype));
        }
        assert_eq!(DType::from_code(22), None);
    }

    #[test]
    fn an_unknown_name_is_told_what_is_known() {
        let error = DType::from_name("float33").unwrap_err().to_string();
        assert!(error.contains("float33") && error.contains("bfloat16"), "{error}");
    }

    #[test]
    fn dlpack_bits_agree_with_the_bytes_of_an_item() {
        for dtype in DType::ALL {
            let (_, bits, lanes) = dtype.dlpack();
            assert_eq!(u64::from(bits) * u64::from(lanes), dtype.item_bytes() * 8, "{dtype:?}");
        }
    }
}
