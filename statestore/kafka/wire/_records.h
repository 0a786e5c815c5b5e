/* What the sources of the extension `_records` share: whole numbers as Kafka writes them, and sums.

   All numbers are read and written byte by byte, so the order of bytes of the machine and the
   alignment of buffers do not matter; compilers make one instruction of it. */

#ifndef STATESTORE_RECORDS_H
#define STATESTORE_RECORDS_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* The layout of a batch, KIP-98: places of fields, counted from its first byte. */
enum {
    AT_LENGTH = 8,
    AT_LEADER_EPOCH = 12,
    AT_MAGIC = 16,
    AT_CRC = 17,
    AT_ATTRIBUTES = 21,
    AT_LAST_DELTA = 23,
    AT_BASE_TIMESTAMP = 27,
    AT_MAX_TIMESTAMP = 35,
    AT_PRODUCER_ID = 43,
    AT_PRODUCER_EPOCH = 51,
    AT_BASE_SEQUENCE = 53,
    AT_COUNT = 57,
    AT_RECORDS = 61,
};

/* Bits of the attributes of a batch. */
enum {
    CODEC_BITS = 0x07,
    LOG_APPEND_TIME = 0x08,
    TRANSACTIONAL = 0x10,
    CONTROL = 0x20,
    DELETE_HORIZON = 0x40, /* KIP-534: the base timestamp is the horizon, and times count from it */
    KNOWN_BITS = 0x7f,
};

/* The fewest bytes of a record: its length, attributes, two deltas, two lengths, no headers. */
#define RECORD_BYTES_MIN 7

static inline uint16_t load16(const uint8_t *p) { return (uint16_t)((uint16_t)p[0] << 8 | p[1]); }

static inline uint32_t load32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t load64(const uint8_t *p)
{
    return (uint64_t)load32(p) << 32 | load32(p + 4);
}

static inline void store16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static inline void store32(uint8_t *p, uint32_t v)
{
    store16(p, (uint16_t)(v >> 16));
    store16(p + 2, (uint16_t)v);
}

static inline void store64(uint8_t *p, uint64_t v)
{
    store32(p, (uint32_t)(v >> 32));
    store32(p + 4, (uint32_t)v);
}

static inline uint32_t load32_little(const uint8_t *p)
{
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

static inline uint64_t load64_little(const uint8_t *p)
{
    return (uint64_t)load32_little(p + 4) << 32 | load32_little(p);
}

/* Numbers in columns are in the order of the machine, as Arrow has them. */
static inline int64_t number_at(const uint8_t *numbers, Py_ssize_t place)
{
    int64_t number;
    memcpy(&number, numbers + place * (Py_ssize_t)sizeof number, sizeof number);
    return number;
}

/* _crc.c */
uint32_t crc32c(const uint8_t *data, size_t size);
uint32_t crc32_zlib(const uint8_t *data, size_t size);
int crc32c_by_instruction(int allowed);

/* _columns.c */

typedef struct {
    PyObject *array; /* a bytearray, or NULL before anything was added */
    uint8_t *begin;
    Py_ssize_t used, room;
} growing;

/* Make room for so many bytes more; ValueError if that were more than `most` altogether. */
int grow(growing *it, Py_ssize_t more, Py_ssize_t most);
/* Give the bytearray away, as long as what is used of it. */
PyObject *grown(growing *it);

/* The bytes of a key, a value, or part of a header; no data is null. */
typedef struct {
    const uint8_t *data;
    Py_ssize_t size;
} piece;

/* Where keys or values are taken from: a list, or a ByteColumn. */
typedef struct {
    PyObject *list;
    Py_buffer views[3];
    int held;
    const uint8_t *data, *offsets, *valid;
    Py_ssize_t first, count, step, data_bytes;
} pieces;

int open_pieces(PyObject *given, pieces *it);
void close_pieces(pieces *it);
int take_bytes(PyObject *given, piece *taken);
int take_from_column(const pieces *it, Py_ssize_t row, piece *taken);

static inline int take_piece(const pieces *it, Py_ssize_t row, piece *taken)
{
    return it->list != NULL ? take_bytes(PyList_GetItem(it->list, row), taken)
                            : take_from_column(it, row, taken);
}

/* Note whether a row is null; `valid` stays empty until the first one is. */
int add_validity(growing *valid, Py_ssize_t row, int is_null);

static inline void add_number(growing *it, int64_t number)
{
    memcpy(it->begin + it->used, &number, sizeof number);
    it->used += (Py_ssize_t)sizeof number;
}

static inline void add_bytes(growing *it, const uint8_t *from, Py_ssize_t size)
{
    if (size)
        memcpy(it->begin + it->used, from, (size_t)size);
    it->used += size;
}

PyObject *records_cut(PyObject *module, PyObject *arguments);
PyObject *records_size_bytes(PyObject *module, PyObject *column);
PyObject *records_joined(PyObject *module, PyObject *columns);

/* _gathered.c */

typedef struct {
    const uint8_t *at, *end;
} cursor;

typedef struct {
    piece key, value;
    int64_t timestamp, offset;
} record;

/* Where each key or value begins and ends in the data that all columns of a set share. */
typedef struct {
    growing ends, valid;
} spans;

/* The records of a set so far. Their data is the set itself, until the first compressed batch. */
typedef struct {
    PyObject *source; /* borrowed */
    Py_buffer set;    /* its bytes */
    growing copied;   /* the payloads so far, from that batch on */
    const uint8_t *payload;
    int64_t shift; /* where the payload of the present batch begins in the data */
    PyObject *headers; /* NULL until the first record that has any */
    spans keys, values;
    growing times, offsets;
    Py_ssize_t count;
    int64_t bytes;
} gathered;

int gather_begin(gathered *all, PyObject *source);
void gather_end(gathered *all);
/* Make room for so many records of the batch whose records `payload` has, decompressed. In the set
   they begin at the byte `at`; `is_there`: the payload itself. */
int gather_payload(gathered *all, Py_ssize_t records, const uint8_t *payload, Py_ssize_t size,
                   Py_ssize_t at, int is_there);
/* Add a record; `headers` is taken over, and NULL if it has none. */
int gather_add(gathered *all, const record *r, PyObject *headers);
PyObject *gather_result(gathered *all, int64_t start, int64_t next_offset);

/* _decode.c */
PyObject *records_decode(PyObject *module, PyObject *arguments);

/* _encode.c */
PyObject *records_encode(PyObject *module, PyObject *arguments);
PyObject *records_larger(PyObject *module, PyObject *arguments);
PyObject *records_cuts(PyObject *module, PyObject *arguments);
PyObject *records_partitions(PyObject *module, PyObject *arguments);

#endif
