/* CRC-32C (Castagnoli, of record batches) and CRC-32 (zlib's, of librdkafka's partitioner).

   CRC-32C uses the instruction of the processor where it has one, which is asked at run time, and
   otherwise tables that take eight bytes at a time. Both give the same sums. */

#include "_records.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <nmmintrin.h>
#define HAS_INSTRUCTION 1
#define WITH_INSTRUCTION __attribute__((target("sse4.2")))
#define STEP64(sum, word) ((uint32_t)_mm_crc32_u64((sum), (word)))
#define STEP8(sum, byte) (_mm_crc32_u8((sum), (byte)))
static int processor_has_it(void) { return __builtin_cpu_supports("sse4.2") != 0; }

#elif defined(__aarch64__) && (defined(__linux__) || defined(__ARM_FEATURE_CRC32))
/* The instructions are written out: compilers disagree on how a function names its extension. */
#if defined(__linux__)
#include <sys/auxv.h>
static int processor_has_it(void) { return (getauxval(AT_HWCAP) & (1UL << 7)) != 0; }
#else
static int processor_has_it(void) { return 1; }
#endif
#define HAS_INSTRUCTION 1
#define WITH_INSTRUCTION
static inline uint32_t STEP64(uint32_t sum, uint64_t word)
{
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(sum) : "r"(word));
    return sum;
}
static inline uint32_t STEP8(uint32_t sum, uint8_t byte)
{
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(sum) : "r"((uint32_t)byte));
    return sum;
}
#endif

#define CASTAGNOLI 0x82f63b78u
#define ZLIB 0xedb88320u

typedef struct {
    uint32_t at[8][256];
} tables;

static tables castagnoli, zlib;
static int by_instruction = -1; /* unknown until first asked */

static void fill(tables *made, uint32_t polynomial)
{
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t sum = n;
        for (int bit = 0; bit < 8; bit++)
            sum = sum & 1 ? sum >> 1 ^ polynomial : sum >> 1;
        made->at[0][n] = sum;
    }
    for (int k = 1; k < 8; k++)
        for (int n = 0; n < 256; n++) {
            uint32_t before = made->at[k - 1][n];
            made->at[k][n] = before >> 8 ^ made->at[0][before & 0xff];
        }
}

static uint32_t by_tables(const tables *t, const uint8_t *p, size_t size)
{
    uint32_t sum = 0xffffffffu;
    for (; size >= 8; p += 8, size -= 8) {
        uint32_t low = load32_little(p) ^ sum, high = load32_little(p + 4);
        sum = t->at[7][low & 0xff] ^ t->at[6][low >> 8 & 0xff] ^ t->at[5][low >> 16 & 0xff] ^
              t->at[4][low >> 24] ^ t->at[3][high & 0xff] ^ t->at[2][high >> 8 & 0xff] ^
              t->at[1][high >> 16 & 0xff] ^ t->at[0][high >> 24];
    }
    for (; size; p++, size--)
        sum = sum >> 8 ^ t->at[0][(sum ^ *p) & 0xff];
    return sum ^ 0xffffffffu;
}

#ifdef HAS_INSTRUCTION
WITH_INSTRUCTION static uint32_t by_processor(const uint8_t *p, size_t size)
{
    uint32_t sum = 0xffffffffu;
    for (; size >= 8; p += 8, size -= 8)
        sum = STEP64(sum, load64_little(p));
    for (; size; p++, size--)
        sum = STEP8(sum, *p);
    return sum ^ 0xffffffffu;
}
#endif

/* Fill the tables; say whether the instruction is used from now on, if it is allowed. */
int crc32c_by_instruction(int allowed)
{
    fill(&castagnoli, CASTAGNOLI);
    fill(&zlib, ZLIB);
    by_instruction = 0;
#ifdef HAS_INSTRUCTION
    by_instruction = allowed && processor_has_it();
#else
    (void)allowed;
#endif
    return by_instruction;
}

uint32_t crc32c(const uint8_t *data, size_t size)
{
#ifdef HAS_INSTRUCTION
    if (by_instruction)
        return by_processor(data, size);
#endif
    return by_tables(&castagnoli, data, size);
}

uint32_t crc32_zlib(const uint8_t *data, size_t size) { return by_tables(&zlib, data, size); }
