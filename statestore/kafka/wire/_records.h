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

/* _crc.c */
uint32_t crc32c(const uint8_t *data, size_t size);
uint32_t crc32_zlib(const uint8_t *data, size_t size);
int crc32c_by_instruction(int allowed);

/* _decode.c */
PyObject *records_decode(PyObject *module, PyObject *arguments);

/* _encode.c */
PyObject *records_encode(PyObject *module, PyObject *arguments);
PyObject *records_cuts(PyObject *module, PyObject *arguments);
PyObject *records_partitions(PyObject *module, PyObject *arguments);

#endif
