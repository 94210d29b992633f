#!/usr/bin/env node
// A reader of shardvar's native format in one file: no package, no framework, written from docs/format.md alone.
//
//     node reader.mjs PREFIX              print the contents of the checkpoint as one JSON object
//     node reader.mjs PREFIX KEY          print the values of one tensor
//     node reader.mjs PREFIX KEY --hex    print its bytes: C order, little-endian
//     node reader.mjs PREFIX --digest     print the digest of each tensor, as docs/digest.md defines it, and compare them
//                                         with the ones that the checkpoint carries
//
// Exit codes: 0 for success, 1 if something requested is damaged, 2 for a usage error.
//
// Programs call `openCheckpoint(storage, prefix)`. A storage has two functions, which may return promises. In a browser
// it can therefore read files that the user chose, or files of a server:
//
//     nbytes(name)               the size of a file in bytes, or undefined if the file is missing
//     read(name, start, nbytes)  a Uint8Array
//
// The reader trusts no file. It compares the checksum of a block before it decodes the block, and the checksums of a
// payload and its runs whenever it reads the payload. It checks the bounds of every number before it allocates with it.
// A fault in one tensor affects only that tensor. A missing region is an error, and is never filled with zeros.
//
// 64-bit numbers stay BigInts until they are known to be small.

const HEADER = [0x89, 0x53, 0x56, 0x58, 0x0d, 0x0a, 0x1a, 0x0a];
const FOOTER = [0x53, 0x56, 0x58, 0x0d, 0x0a, 0x1a, 0x0a, 0x89];
const FOOTER_NBYTES = 40;
const MAX_TABLE_NBYTES = 256 << 20;
const MAX_BLOCK_NBYTES = 64 << 20;
const MAX_SHARED_NBYTES = 1 << 20; // a larger block must have only one entry
const MAX_NAMES = 64; // in a block
const MAX_RANK = 64;
const MAX_NBYTES = 2n ** 62n; // in a full tensor

/** A fault in a checkpoint. */
export class CheckpointError extends Error {}

function check(condition, message) {
  if (!condition) throw new CheckpointError(message);
}

// Checksums ------------------------------------------------------------------------------------------------------

/** The register after each byte, for Castagnoli's polynomial, reflected. */
const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0x82f63b78 : byte >>> 1;
  return byte;
});

export function crc32c(octets) {
  let crc = 0xffffffff;
  for (let i = 0; i < octets.length; i++) crc = CRC_TABLE[(crc ^ octets[i]) & 0xff] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

/** The masked form in which a string tensor stores the checksum of its lengths. */
function masked(crc) {
  return (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
}

// Blocks: one msgpack map from texts to integers, texts and byte strings --------------------------------------------

const view = (octets) => new DataView(octets.buffer, octets.byteOffset, octets.byteLength);

/** Decode UTF-8. Other bytes become Python's surrogate escapes, so that different names stay different. */
function decodeText(octets) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(octets);
  } catch {
    let text = "";
    for (let i = 0, nbytes; i < octets.length; i += nbytes) {
      for (nbytes = 4; nbytes > 0; nbytes--) {
        const piece = new TextDecoder("utf-8", { ignoreBOM: true }).decode(octets.subarray(i, i + nbytes));
        if ([...piece].length === 1 && piece !== "\ufffd" && i + nbytes <= octets.length) {
          text += piece;
          break;
        }
      }
      if (nbytes === 0) text += String.fromCharCode(0xdc00 + octets[i]);
      nbytes ||= 1;
    }
    return text;
  }
}

/** Decode a block: a Map from names to Numbers, BigInts, texts and Uint8Arrays. */
function decodeMap(octets) {
  const data = view(octets);
  let at = 0;
  const take = (nbytes) => {
    check(nbytes <= octets.length - at, "A block ends within a value.");
    at += nbytes;
    return at - nbytes;
  };
  const bytes = (nbytes) => octets.subarray(take(nbytes), at);
  const text = (nbytes) => decodeText(bytes(nbytes));
  const value = () => {
    const tag = data.getUint8(take(1));
    if (tag < 0x80) return tag;
    if (tag >= 0xe0) return tag - 0x100;
    if (tag >= 0xa0 && tag < 0xc0) return text(tag & 0x1f);
    switch (tag) {
      case 0xc4: return bytes(data.getUint8(take(1)));
      case 0xc5: return bytes(data.getUint16(take(2)));
      case 0xc6: return bytes(data.getUint32(take(4)));
      case 0xcc: return data.getUint8(take(1));
      case 0xcd: return data.getUint16(take(2));
      case 0xce: return data.getUint32(take(4));
      case 0xcf: return data.getBigUint64(take(8));
      case 0xd0: return data.getInt8(take(1));
      case 0xd1: return data.getInt16(take(2));
      case 0xd2: return data.getInt32(take(4));
      case 0xd3: return data.getBigInt64(take(8));
      case 0xd9: return text(data.getUint8(take(1)));
      case 0xda: return text(data.getUint16(take(2)));
      case 0xdb: return text(data.getUint32(take(4)));
      default: throw new CheckpointError(`A block holds a value of msgpack type ${tag.toString(16)}.`);
    }
  };
  const tag = data.getUint8(take(1));
  let count = tag & 0x0f;
  if (tag === 0xde) count = data.getUint16(take(2));
  else if (tag === 0xdf) count = data.getUint32(take(4));
  else check(tag >> 4 === 8, "A block is not a map.");
  check(count <= MAX_NAMES, `A block has ${count} names.`);
  const map = new Map();
  for (let i = 0; i < count; i++) {
    const name = value();
    check(typeof name === "string", "A name in a block is not a text.");
    check(!map.has(name), `A block has ${JSON.stringify(name)} twice.`);
    map.set(name, value());
  }
  check(at === octets.length, "A block goes on after its map.");
  return map;
}

function take(map, name, type) {
  const value = map.get(name);
  const is = value instanceof Uint8Array ? "bytes" : typeof value;
  check(is === type, `${JSON.stringify(name)} of a block is ${is}, not ${type}.`);
  return value;
}

/** The numbers packed under a name, 1, 4 or 8 bytes each. If `count` is given, there must be that many. */
function numbers(map, name, width, count) {
  const octets = take(map, name, "bytes");
  check(octets.length % width === 0, `${JSON.stringify(name)} ends within a number.`);
  const found = octets.length / width;
  check(count === undefined || found === count, `${JSON.stringify(name)} has ${found} numbers instead of ${count}.`);
  const data = view(octets);
  const read = {
    1: (i) => data.getUint8(i),
    4: (i) => data.getUint32(4 * i, true),
    8: (i) => data.getBigUint64(8 * i, true),
  }[width];
  return Array.from({ length: found }, (_, i) => read(i));
}

/** The byte strings packed under a name. */
function strings(map, name) {
  const octets = take(map, name, "bytes");
  let at = 0;
  const found = numbers(map, `${name}_nbytes`, 4).map((nbytes) => octets.subarray(at, (at += nbytes)));
  check(at === octets.length, `The lengths of ${JSON.stringify(name)} do not add up.`);
  return found;
}

/** Compare two byte strings: negative if the first sorts before the second, zero if they are equal, else positive. */
function compare(a, b) {
  for (let i = 0; i < Math.min(a.length, b.length); i++) if (a[i] !== b[i]) return a[i] - b[i];
  return a.length - b.length;
}

// The index --------------------------------------------------------------------------------------------------------

async function readFooter(storage, name) {
  const nbytes = await storage.nbytes(name);
  check(nbytes !== undefined, `${name} is missing.`);
  check(nbytes >= HEADER.length + FOOTER_NBYTES, `${name} is too short for an index.`);
  const header = await storage.read(name, 0, HEADER.length);
  const footer = await storage.read(name, nbytes - FOOTER_NBYTES, FOOTER_NBYTES);
  check(compare(header, HEADER) === 0 && compare(footer.subarray(32), FOOTER) === 0, `${name} is not an index.`);
  const data = view(footer);
  check(crc32c(footer.subarray(0, 28)) === data.getUint32(28, true), `The footer of ${name} is corrupt.`);
  const version = data.getUint32(24, true);
  check([1, 3, 4].includes(version), `${name} is of version ${version}; this reader knows 1, 3 and 4.`);
  const [metadata, table] = [data.getBigUint64(0, true), data.getBigUint64(8, true)];
  check(table <= MAX_TABLE_NBYTES && metadata <= MAX_BLOCK_NBYTES, `${name} has a table or metadata that is too large.`);
  const tableStart = nbytes - FOOTER_NBYTES - Number(table);
  const metadataStart = tableStart - Number(metadata);
  check(metadataStart >= HEADER.length, `${name} is shorter than its parts.`);
  const block = (start, size, at) => ({ start, nbytes: Number(size), crc: data.getUint32(at, true) });
  return { metadata: block(metadataStart, metadata, 16), table: block(tableStart, table, 20) };
}

async function readBlock(storage, name, { start, nbytes, crc }) {
  const octets = await storage.read(name, start, nbytes);
  check(crc32c(octets) === crc, `The block at ${start} of ${name} is corrupt.`);
  return decodeMap(octets);
}

function readMetadata(map, prefix) {
  const generation = take(map, "generation", "string");
  check(/^[A-Za-z0-9]{1,64}$/.test(generation), `Invalid generation ${JSON.stringify(generation)}.`);
  const sizes = numbers(map, "file_nbytes", 8);
  const run = take(map, "run_nbytes", "number");
  check(run >= 1 && run <= 2 ** 30, `Invalid run size of ${run} bytes.`);
  check(sizes.length <= 99999, `${sizes.length} data files are too many.`);
  const digits = (number) => String(number).padStart(5, "0");
  const ends = map.has("file_name")
    ? strings(map, "file_name").map(decodeText)
    : sizes.map((_, number) => `${generation}-${digits(number)}-of-${digits(sizes.length)}`);
  const owned = map.has("file_name") && map.has("file_owner");
  const owners = owned ? strings(map, "file_owner").map(decodeText) : ends.map(() => "");
  const paths = ends.map((end, number) => `${owners[number]}/${end}`);
  const isComplete = ends.length === sizes.length && owners.length === sizes.length;
  check(isComplete && new Set(paths).size === ends.length, "The files have not one name each.");
  for (const end of ends) {
    check(/^[A-Za-z0-9]{1,64}-[0-9]{5}-of-[0-9]{5}$/.test(end), `Invalid file name ${JSON.stringify(end)}.`);
  }
  for (const owner of owners) {
    check(!/^\.\.?$|[/\\\0]/.test(owner), `${JSON.stringify(owner)} is not a checkpoint of the same directory.`);
  }
  const folder = prefix.slice(0, prefix.lastIndexOf("/") + 1);
  const files = sizes.map((nbytes, number) => {
    const owner = owners[number] ? folder + owners[number] : prefix;
    return { name: `${owner}.svdata-${ends[number]}`, nbytes };
  });
  const [names, values] = [strings(map, "user_name"), strings(map, "user_value")];
  check(names.length === values.length, "The user's metadata has different numbers of names and values.");
  const user = Object.fromEntries(names.map((name, i) => [decodeText(name), decodeText(values[i])]));
  const [description, writer] = [take(map, "description", "string"), take(map, "writer", "string")];
  return { description, writer, generation, user, run, files };
}

function readTable(map, end) {
  const sizes = numbers(map, "nbytes", 4);
  const crcs = numbers(map, "crc", 4, sizes.length);
  const firstKeys = strings(map, "first_key");
  check(firstKeys.length === sizes.length, "The table does not have one first key for each block.");
  let start = HEADER.length;
  const blocks = sizes.map((nbytes, i) => {
    check(nbytes <= MAX_BLOCK_NBYTES, `A block has ${nbytes} bytes.`);
    check(i === 0 || compare(firstKeys[i - 1], firstKeys[i]) <= 0, "The first keys of the blocks are not sorted.");
    start += nbytes;
    return { start: start - nbytes, nbytes, crc: crcs[i], firstKey: firstKeys[i] };
  });
  check(start === end, "The blocks do not end where the metadata begins.");
  return blocks;
}

/** Add the entries of a block to `tensors`, a Map from key to {key, dtype, shape, slices, fault}. */
function readEntries(map, block, metadata, tensors) {
  const keys = strings(map, "key");
  const names = strings(map, "dtype_name").map(decodeText);
  const [dtype, rank] = ["dtype", "rank"].map((name) => numbers(map, name, 1, keys.length));
  const count = numbers(map, "count", 4, keys.length);
  const [file, crc] = ["file", "crc"].map((name) => numbers(map, name, 4));
  const [start, nbytes] = ["start", "nbytes"].map((name) => numbers(map, name, 8, file.length));
  check(crc.length === file.length && keys.length > 0, "The columns of a block differ in length.");
  check(count.every((n) => n > 0) && count.reduce((a, b) => a + b) === file.length, "The counts do not add up.");
  check(block.nbytes <= MAX_SHARED_NBYTES || file.length === 1, `${file.length} entries share a large block.`);
  check(compare(keys[0], block.firstKey) === 0, "A block does not begin with the key that the table says.");
  const [shape, offset, extent, runCrc] = [8, 8, 8, 4].map((width, i) => {
    const name = ["shape", "offset", "extent", "run_crc"][i];
    return cursor(numbers(map, name, width), name);
  });
  let row = 0;
  keys.forEach((octets, i) => {
    check(i === 0 || compare(keys[i - 1], octets) < 0, "The keys of a block are not in strictly ascending order.");
    check(rank[i] <= MAX_RANK && dtype[i] < names.length, "A tensor has a rank or dtype out of bounds.");
    const key = decodeText(octets);
    const fresh = { key, dtype: names[dtype[i]], shape: shape.next(rank[i]), slices: [] };
    const tensor = tensors.get(key) ?? fresh;
    tensors.set(key, tensor);
    if (tensor.dtype !== fresh.dtype || String(tensor.shape) !== String(fresh.shape))
      tensor.fault = "Two blocks disagree on its dtype or shape.";
    for (const stop = row + count[i]; row < stop; row++) {
      const numRuns = (nbytes[row] + BigInt(metadata.run - 1)) / BigInt(metadata.run);
      tensor.slices.push({
        offset: offset.next(rank[i]), shape: extent.next(rank[i]),
        file: file[row], start: start[row], nbytes: nbytes[row], crc: crc[row],
        runs: numRuns > 1n ? runCrc.next(Number(numRuns)) : [],
      });
    }
  });
  for (const column of [shape, offset, extent, runCrc]) column.end();
}

/** Take an array a few numbers at a time. `end` checks that all were taken. */
function cursor(values, name) {
  let at = 0;
  return {
    next(count) {
      check(count <= values.length - at, `A block has too few numbers in ${JSON.stringify(name)}.`);
      at += count;
      return values.slice(at - count, at);
    },
    end: () => check(at === values.length, `A block has too many numbers in ${JSON.stringify(name)}.`),
  };
}

// Checks of each tensor ------------------------------------------------------------------------------------------

const product = (shape) => shape.reduce((a, b) => a * b, 1n);
const text = (slice) => `[${slice.offset.map((first, axis) => `${first}:${first + slice.shape[axis]}`).join(", ")}]`;

/** The fault of a tensor, or undefined if it is intact. */
function faultOf(tensor, files) {
  try {
    if (tensor.fault) return tensor.fault;
    const itemsize = DTYPES[tensor.dtype]?.nbytes;
    check(itemsize !== undefined, `Its dtype ${JSON.stringify(tensor.dtype)} is unknown.`);
    check(tensor.shape.every((extent) => extent <= MAX_NBYTES), "Its shape is too large.");
    check(product(tensor.shape) * BigInt(itemsize || 1) <= MAX_NBYTES, "Its shape is too large.");
    for (const slice of tensor.slices) checkSlice(tensor, slice, BigInt(itemsize), files);
    checkCoverage(tensor);
  } catch (error) {
    if (error instanceof CheckpointError) return error.message;
    throw error;
  }
}

function checkSlice(tensor, slice, itemsize, files) {
  const isInside = slice.offset.every((first, axis) => first + slice.shape[axis] <= tensor.shape[axis]);
  check(isInside, `Its slice ${text(slice)} is outside its shape [${tensor.shape.join(", ")}].`);
  const count = product(slice.shape);
  if (itemsize) check(slice.nbytes === count * itemsize, `Its slice ${text(slice)} has ${slice.nbytes} bytes.`);
  else check(count === product(tensor.shape) && slice.nbytes >= count, "It is cut, or smaller than a byte an element.");
  const file = files[slice.file];
  check(file !== undefined, `Its slice ${text(slice)} is in file ${slice.file} of ${files.length}.`);
  check(slice.start + slice.nbytes <= file.nbytes, `Its slice ${text(slice)} ends after the end of ${file.name}.`);
}

/** Check that slices tile the shape. Disjoint regions within a shape cover it if their sizes add up to its size. */
function checkCoverage(tensor) {
  const filled = tensor.slices.filter((slice) => product(slice.shape) > 0n);
  // Sorted by their first row, so that the inner loop stops at the first slice that begins after `a` ends.
  filled.sort((a, b) => Number((a.offset[0] ?? 0n) - (b.offset[0] ?? 0n)));
  filled.forEach((a, i) => {
    for (const b of filled.slice(i + 1)) {
      if (a.offset.length && b.offset[0] >= a.offset[0] + a.shape[0]) break;
      const apart = a.offset.some((_, axis) => {
        return a.offset[axis] + a.shape[axis] <= b.offset[axis] || b.offset[axis] + b.shape[axis] <= a.offset[axis];
      });
      check(apart, `Its slices ${text(a)} and ${text(b)} overlap.`);
    }
  });
  const held = filled.reduce((sum, slice) => sum + product(slice.shape), 0n);
  check(held === product(tensor.shape), `It is incomplete: ${held} of its ${product(tensor.shape)} elements are stored.`);
}

// Values -------------------------------------------------------------------------------------------------------------

const little = (method, nbytes) => ({ nbytes, read: (data, at) => data[method](at, true) });
const complex = (part) => ({
  nbytes: 2 * part.nbytes,
  read: (data, at) => [part.read(data, at), part.read(data, at + part.nbytes)],
});

/** An integer in the low bits of a byte. */
const narrow = (bits, isSigned) => ({
  nbytes: 1,
  read: (data, at) => (isSigned ? (data.getUint8(at) << (32 - bits)) >> (32 - bits) : data.getUint8(at) & (2 ** bits - 1)),
});

/**
 * A float in the low bits of a byte: sign, exponent, mantissa. `special` names the special values: "ieee" has infinities
 * and NaNs at the highest exponent, "fn" has a NaN with all bits set, "fnuz" has a NaN in the place of -0.
 */
const small = (exponentBits, mantissaBits, bias, special) => ({
  nbytes: 1,
  read(data, at) {
    const octet = data.getUint8(at) & (2 ** (1 + exponentBits + mantissaBits) - 1);
    const sign = octet >> (exponentBits + mantissaBits) ? -1 : 1;
    const exponent = (octet >> mantissaBits) & (2 ** exponentBits - 1);
    const mantissa = octet & (2 ** mantissaBits - 1);
    const isHighest = exponent === 2 ** exponentBits - 1;
    if (special === "ieee" && isHighest) return mantissa ? NaN : sign * Infinity;
    if (special === "fn" && isHighest && mantissa === 2 ** mantissaBits - 1) return NaN;
    if (special === "fnuz" && sign < 0 && exponent === 0 && mantissa === 0) return NaN;
    const fraction = mantissa / 2 ** mantissaBits;
    return sign * (exponent ? (1 + fraction) * 2 ** (exponent - bias) : fraction * 2 ** (1 - bias));
  },
});

function float16(data, at) {
  const bits = data.getUint16(at, true);
  const [sign, exponent, mantissa] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + mantissa / 1024) * 2 ** (exponent - 15) : (mantissa / 1024) * 2 ** -14);
}

function bfloat16(data, at) {
  const wide = new DataView(new ArrayBuffer(4));
  wide.setUint16(0, data.getUint16(at, true));
  return wide.getFloat32(0);
}

function bool(data, at) {
  check(data.getUint8(at) < 2, `A boolean is ${data.getUint8(at)}.`);
  return data.getUint8(at) === 1;
}

const [int8, int16, int32] = [little("getInt8", 1), little("getInt16", 2), little("getInt32", 4)];
const [uint8, uint16, uint32] = [little("getUint8", 1), little("getUint16", 2), little("getUint32", 4)];
const [float32, float64] = [little("getFloat32", 4), little("getFloat64", 8)];

/** For each dtype, the bytes of an element (0 if sizes vary), and a function that reads a number, if it is one. */
const DTYPES = {
  bool: { nbytes: 1, read: bool },
  int8, int16, int32, int64: little("getBigInt64", 8), uint8, uint16, uint32, uint64: little("getBigUint64", 8),
  float16: { nbytes: 2, read: float16 }, bfloat16: { nbytes: 2, read: bfloat16 }, float32, float64,
  complex64: complex(float32), complex128: complex(float64),
  float8_e3m4: small(3, 4, 3, "ieee"), float8_e4m3: small(4, 3, 7, "ieee"), float8_e5m2: small(5, 2, 15, "ieee"),
  float8_e4m3fn: small(4, 3, 7, "fn"), float8_e4m3fnuz: small(4, 3, 8, "fnuz"),
  float8_e4m3b11fnuz: small(4, 3, 11, "fnuz"), float8_e5m2fnuz: small(5, 2, 16, "fnuz"),
  float8_e8m0fnu: { nbytes: 1, read: (data, at) => (data.getUint8(at) === 255 ? NaN : 2 ** (data.getUint8(at) - 127)) },
  float6_e2m3fn: small(2, 3, 1, "finite"), float6_e3m2fn: small(3, 2, 3, "finite"),
  float4_e2m1fn: small(2, 1, 1, "finite"),
  int2: narrow(2, true), int4: narrow(4, true), uint2: narrow(2, false), uint4: narrow(4, false),
  qint8: { nbytes: 1 }, quint8: { nbytes: 1 }, qint16: { nbytes: 2 }, quint16: { nbytes: 2 }, qint32: { nbytes: 4 },
  complex32: { nbytes: 4 }, bits8: { nbytes: 1 }, bits16: { nbytes: 2 }, float4_e2m1fn_x2: { nbytes: 1 },
  float4_e2m1fn_packed: { nbytes: 0 }, float6_e2m3fn_packed: { nbytes: 0 }, float6_e3m2fn_packed: { nbytes: 0 },
  string: { nbytes: 0 }, variant: { nbytes: 0 },
};

/** The byte strings of a `string` payload. */
function decodeStrings(payload, count) {
  let at = 0;
  const lengths = Array.from({ length: count }, () => {
    let [value, shift] = [0n, 0n];
    for (let octet = 0x80; octet & 0x80; shift += 7n) {
      check(at < payload.length && shift < 70n, "The lengths of its strings do not end.");
      octet = payload[at++];
      value |= BigInt(octet & 0x7f) << shift;
    }
    check(value <= BigInt(payload.length), "A string is longer than all of them.");
    return Number(value);
  });
  check(payload.length >= at + 4, "Its strings have no checksum.");
  const plain = new DataView(new ArrayBuffer(4 * count));
  lengths.forEach((length, i) => plain.setUint32(4 * i, length, true));
  const promised = view(payload).getUint32(at, true);
  check(masked(crc32c(new Uint8Array(plain.buffer))) === promised, "The lengths of its strings are corrupt.");
  at += 4;
  const found = lengths.map((length) => payload.subarray(at, (at += length)));
  check(at === payload.length, "The lengths of its strings do not add up.");
  return found;
}

/** Copy the bytes of a slice to their places in the tensor. */
function place(octets, shape, slice, payload, itemsize) {
  const rank = shape.length;
  const [whole, offset, extent] = [shape, slice.offset, slice.shape].map((numbers) => numbers.map(Number));
  const row = (rank ? extent[rank - 1] : 1) * itemsize;
  if (!payload.length) return;
  const index = Array.from({ length: Math.max(rank - 1, 0) }, () => 0);
  for (let from = 0; from < payload.length; from += row) {
    let to = 0;
    for (let axis = 0; axis < rank; axis++) to = to * whole[axis] + offset[axis] + (index[axis] ?? 0);
    octets.set(payload.subarray(from, from + row), to * itemsize);
    for (let axis = rank - 2; axis >= 0 && ++index[axis] === extent[axis]; axis--) index[axis] = 0;
  }
}

// Digests ---------------------------------------------------------------------------------------------------------------

const LEAF_NBYTES = 1 << 20;
const USED_BITS = { int2: 3, uint2: 3, int4: 15, uint4: 15, float4_e2m1fn: 15, float6_e2m3fn: 63, float6_e3m2fn: 63 };

const sha256 = async (octets) => new Uint8Array(await crypto.subtle.digest("SHA-256", octets));

function joined(parts) {
  const octets = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    octets.set(part, at);
    at += part.length;
  }
  return octets;
}

/** The bytes that a text was decoded from: the inverse of `decodeText`. */
function encodeText(text) {
  const encode = (each) => new TextEncoder().encode(each);
  const escaped = /^[\udc80-\udcff]$/;
  return joined([...text].map((each) => (escaped.test(each) ? Uint8Array.of(each.charCodeAt(0) - 0xdc00) : encode(each))));
}

/** The data of a tensor: strings with their lengths before them, and no unused bits. */
function digestedData({ dtype, shape }, octets) {
  if (dtype === "string") {
    const lengthOf = (each) => {
      const length = new Uint8Array(8);
      view(length).setBigUint64(0, BigInt(each.length), true);
      return length;
    };
    return joined(decodeStrings(octets, Number(product(shape))).flatMap((each) => [lengthOf(each), each]));
  }
  return dtype in USED_BITS ? octets.map((octet) => octet & USED_BITS[dtype]) : octets;
}

async function digestOf({ key, dtype, shape }, data) {
  const name = encodeText(key);
  const leaves = [];
  for (let at = 0; at < data.length; at += LEAF_NBYTES) leaves.push(await sha256(data.subarray(at, at + LEAF_NBYTES)));
  const head = new TextEncoder().encode(`shardvar digest 1\n${dtype}\n${shape.join(",")}\n${name.length}\n`);
  return sha256(joined([head, name, ...leaves]));
}

/** The digest of tensors together, from their digests in hexadecimal. */
const digestOfAll = (digests) =>
  sha256(Uint8Array.from(digests.toSorted().flatMap((each) => each.match(/../g).map((digits) => parseInt(digits, 16)))));

/** The digests by key in the text that a checkpoint carries; undefined if it carries none. */
async function carriedDigests(user) {
  const text = user["shardvar.digests"];
  if (text === undefined) return undefined;
  const lines = text.split("\n");
  check(lines.shift() === "# shardvar digest 1" && lines.pop() === "", "The carried digests are not of version 1.");
  const [found, ofAll] = [new Map(), lines.shift()];
  for (const line of lines) {
    const [, digits, key] = /^# tensor ([0-9a-f]{64}) (".*")$/.exec(line) ?? [];
    check(digits, `The carried digests have a line ${JSON.stringify(line)}.`);
    found.set(JSON.parse(key), digits);
  }
  const right = `# checkpoint ${toHex(await digestOfAll([...found.values()]))}`;
  check(ofAll === right, "The carried digest of the checkpoint is not the one of the tensors.");
  return found;
}

// A checkpoint ---------------------------------------------------------------------------------------------------------

/** Open the checkpoint of a prefix: {metadata, tensors, damage, read(key), values(key), digest(key)}. */
export async function openCheckpoint(storage, prefix) {
  const index = `${prefix}.svindex`;
  const footer = await readFooter(storage, index);
  const metadata = readMetadata(await readBlock(storage, index, footer.metadata), prefix);
  const blocks = readTable(await readBlock(storage, index, footer.table), footer.metadata.start);
  const tensors = new Map();
  const damage = []; // damaged blocks, whose tensors are unknown
  for (const block of blocks) {
    try {
      readEntries(await readBlock(storage, index, block), block, metadata, tensors);
    } catch (error) {
      if (!(error instanceof CheckpointError)) throw error;
      damage.push(error.message);
    }
  }
  for (const tensor of tensors.values()) tensor.fault = faultOf(tensor, metadata.files);

  async function payload(slice) {
    const { name, nbytes } = metadata.files[slice.file];
    const found = await storage.nbytes(name);
    check(found !== undefined, `${name} is missing.`);
    check(BigInt(found) === nbytes, `${name} has ${found} bytes, and the index says ${nbytes}.`);
    const octets = await storage.read(name, Number(slice.start), Number(slice.nbytes));
    const where = `The payload at ${slice.start} of ${name}`;
    check(crc32c(octets) === slice.crc, `${where} is corrupt.`);
    slice.runs.forEach((crc, run) => {
      const first = run * metadata.run;
      check(crc32c(octets.subarray(first, first + metadata.run)) === crc, `${where} is corrupt in run ${run}.`);
    });
    return octets;
  }

  /** Read a tensor: the tensor and its bytes, C order, little-endian. Strings and variants are returned as stored. */
  async function read(key) {
    const tensor = tensors.get(key);
    if (!tensor && damage.length) throw new CheckpointError(`${JSON.stringify(key)} may be lost: ${damage[0]}`);
    check(tensor, `The checkpoint has no tensor ${JSON.stringify(key)}.`);
    check(!tensor.fault, `${JSON.stringify(key)}: ${tensor.fault}`);
    const itemsize = DTYPES[tensor.dtype].nbytes;
    if (itemsize === 0) return { tensor, octets: await payload(tensor.slices[0]) };
    const octets = new Uint8Array(Number(product(tensor.shape)) * itemsize);
    for (const slice of tensor.slices) place(octets, tensor.shape, slice, await payload(slice), itemsize);
    return { tensor, octets };
  }

  /** The elements in C order: Numbers, BigInts of 64 bits, booleans, [real, imaginary], Uint8Arrays of strings. */
  async function values(key) {
    const { tensor, octets } = await read(key);
    const count = Number(product(tensor.shape));
    if (tensor.dtype === "string") return { tensor, values: decodeStrings(octets, count) };
    const { nbytes, read: element } = DTYPES[tensor.dtype];
    check(element, `Only TensorFlow can interpret values of dtype ${tensor.dtype}; use --hex to read the bytes.`);
    const data = view(octets);
    return { tensor, values: Array.from({ length: count }, (_, i) => element(data, i * nbytes)) };
  }

  /** The digest of a tensor: 32 bytes. */
  async function digest(key) {
    const { tensor, octets } = await read(key);
    const known = tensor.dtype === "string" || DTYPES[tensor.dtype].read;
    check(known, `${JSON.stringify(key)} is of dtype ${tensor.dtype}, which has no digest.`);
    return digestOf(tensor, digestedData(tensor, octets));
  }

  return { metadata, tensors, damage, read, values, digest };
}

// The command line -------------------------------------------------------------------------------------------------------

/** Format as JSON: BigInts as digits, NaN and infinities as text, and byte strings as text or {"hex": …}. */
export function toJson(value) {
  if (value instanceof Uint8Array) {
    const decoded = decodeText(value);
    const isText = decoded.isWellFormed?.() ?? !/[\ud800-\udfff]/u.test(decoded);
    return isText ? JSON.stringify(decoded) : `{"hex": "${toHex(value)}"}`;
  }
  if (Array.isArray(value)) return `[${value.map(toJson).join(", ")}]`;
  if (typeof value === "bigint") return String(value);
  if (typeof value === "number" && !Number.isFinite(value)) return `"${value}"`;
  if (Object.is(value, -0)) return "-0.0";
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const known = Object.entries(value).filter(([, each]) => each !== undefined);
  return `{${known.map(([name, each]) => `${JSON.stringify(name)}: ${toJson(each)}`).join(", ")}}`;
}

export const toHex = (octets) => Array.from(octets, (octet) => octet.toString(16).padStart(2, "0")).join("");

async function main([prefix, key, option, ...others]) {
  if (prefix === undefined || others.length || (option !== undefined && option !== "--hex")) {
    console.error("usage: node reader.mjs PREFIX [KEY [--hex] | --digest]");
    return 2;
  }
  const checkpoint = await openCheckpoint(await directory(), prefix);
  if (option) {
    const { tensor, octets } = await checkpoint.read(key);
    console.log(toJson({ dtype: tensor.dtype, shape: tensor.shape, hex: toHex(octets) }));
  } else if (key === "--digest") {
    check(!checkpoint.damage.length, `Some tensors may be lost: ${checkpoint.damage[0]}`);
    const digests = new Map();
    for (const each of [...checkpoint.tensors.keys()].sort()) {
      digests.set(each, toHex(await checkpoint.digest(each)));
      console.log(`${digests.get(each)}  ${toJson(each)}`);
    }
    console.log(`checkpoint ${toHex(await digestOfAll([...digests.values()]))}`);
    const { user } = checkpoint.metadata;
    const carried = (await carriedDigests(user)) ?? digests;
    // Objects have digests, too, and are no tensors of the index.
    const keys = "shardvar.objects" in user ? digests.keys() : new Set([...digests.keys(), ...carried.keys()]);
    const wrong = [...keys].filter((each) => digests.get(each) !== carried.get(each));
    for (const each of wrong) console.log(`differs: ${toJson(each)}`);
    return wrong.length ? 1 : 0;
  } else if (key !== undefined) {
    const { tensor, values } = await checkpoint.values(key);
    console.log(toJson({ dtype: tensor.dtype, shape: tensor.shape, values }));
  } else {
    const { metadata, tensors, damage } = checkpoint;
    const { description, writer, generation, user, files } = metadata;
    console.log(toJson({ description, writer, generation, user, files, damage, tensors: [...tensors.values()] }));
    return damage.length || [...tensors.values()].some((tensor) => tensor.fault) ? 1 : 0;
  }
  return 0;
}

/** A storage of node's files. */
export async function directory() {
  const fs = await import("node:fs");
  return {
    nbytes: (name) => fs.statSync(name, { throwIfNoEntry: false })?.size,
    read(name, start, nbytes) {
      const [octets, file] = [new Uint8Array(nbytes), fs.openSync(name)];
      try {
        let done = 0;
        for (let more = -1; done < nbytes && more; done += more) more = fs.readSync(file, octets, done, nbytes - done, start + done);
        check(done === nbytes, `${name} ends at ${start + done}.`);
      } finally {
        fs.closeSync(file);
      }
      return octets;
    },
  };
}

if (globalThis.process?.argv?.[1] && import.meta.url === (await import("node:url")).pathToFileURL(process.argv[1]).href) {
  process.exitCode = await main(process.argv.slice(2)).catch((error) => {
    if (!(error instanceof CheckpointError)) throw error;
    console.error(`error: ${error.message}`);
    return 1;
  });
}
