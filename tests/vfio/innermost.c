/* The innermost machine's only program, started by QEMU itself (multiboot): says which devices it has been given and uses
 * one. Of QEMU's teaching device it asks a factorial and two transfers by DMA, there and back; of an NVMe controller the
 * version in its registers. The firmware (qboot) gives no device its place in memory: that is done here. Everything is told
 * on the serial line; the machine then ends with 33. */
typedef unsigned int u32;
typedef unsigned char u8;

__attribute__((section(".multiboot"), used)) static const u32 header[3] = {0x1BADB002, 0, 0u - 0x1BADB002};

static inline void port_out8(u32 port, u8 value) { __asm__ volatile("outb %b0, %w1" ::"a"(value), "Nd"(port)); }
static inline void port_out32(u32 port, u32 value) { __asm__ volatile("outl %0, %w1" ::"a"(value), "Nd"(port)); }

static inline u8 port_in8(u32 port) {
    u8 value;
    __asm__ volatile("inb %w1, %b0" : "=a"(value) : "Nd"(port));
    return value;
}

static inline u32 port_in32(u32 port) {
    u32 value;
    __asm__ volatile("inl %w1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static void say(const char *text) {
    for (; *text; text++) {
        while (!(port_in8(0x3fd) & 0x20)) {
        }
        port_out8(0x3f8, (u8)*text);
    }
}

static void say_hex(u32 value, int digits) {
    char text[9] = {0};
    for (int i = 0; i < digits; i++) text[i] = "0123456789abcdef"[(value >> (4 * (digits - 1 - i))) & 15];
    say(text);
}

static u32 config_read(u32 function, u32 offset) {
    port_out32(0xcf8, 0x80000000u | function << 8 | offset);
    return port_in32(0xcfc);
}

static void config_write(u32 function, u32 offset, u32 value) {
    port_out32(0xcf8, 0x80000000u | function << 8 | offset);
    port_out32(0xcfc, value);
}

/* Where the function's registers now are; 0 when it has none. */
static u32 place(u32 function) {
    u32 bar = config_read(function, 0x10), at = 0xe0000000u + (function << 20);
    if (config_read(function, 0xc) >> 16 & 0x7f || bar & 1) return 0;
    config_write(function, 0x10, 0xffffffffu);
    if (!config_read(function, 0x10)) return 0;
    config_write(function, 0x10, at);
    if ((bar & 6) == 4) config_write(function, 0x14, 0);
    config_write(function, 4, config_read(function, 4) | 6);
    return at;
}

enum { INVERSE = 1, FACTORIAL = 2, STATUS = 8, DMA_FROM = 0x20, DMA_TO = 0x22, DMA_COUNT = 0x24, DMA_COMMAND = 0x26 };

static void transfer(volatile u32 *edu, u32 from, u32 to, u32 command) {
    edu[DMA_FROM] = from;
    edu[DMA_FROM + 1] = 0;
    edu[DMA_TO] = to;
    edu[DMA_TO + 1] = 0;
    edu[DMA_COUNT] = 512;
    edu[DMA_COUNT + 1] = 0;
    edu[DMA_COMMAND] = command;
    while (edu[DMA_COMMAND] & 1) {
    }
}

static void use_edu(volatile u32 *edu) {
    volatile u32 *sent = (volatile u32 *)0x600000, *received = (volatile u32 *)0x700000;
    u32 wrong = 0;
    edu[INVERSE] = 0x0f0f1234;
    edu[FACTORIAL] = 7;
    while (edu[STATUS] & 1) {
    }
    say("inverse=");
    say_hex(edu[INVERSE], 8);
    say(" factorial=");
    say_hex(edu[FACTORIAL], 8);
    for (u32 i = 0; i < 128; i++) sent[i] = i * 2654435761u, received[i] = 0;
    transfer(edu, (u32)sent, 0x40000, 1);
    transfer(edu, 0x40000, (u32)received, 3);
    for (u32 i = 0; i < 128; i++) wrong += received[i] != sent[i];
    say(wrong ? " dma=wrong" : " dma=right");
}

__attribute__((noreturn, used)) static void begin(void) {
    for (u32 function = 0; function < 256; function++) {
        u32 id = config_read(function, 0);
        if ((id & 0xffff) == 0xffff) continue;
        u32 kind = config_read(function, 8) >> 8, bar = place(function);
        say("pci ");
        say_hex(id & 0xffff, 4);
        say(":");
        say_hex(id >> 16, 4);
        say(" ");
        if (id == 0x11e81234) use_edu((volatile u32 *)bar);
        if (kind == 0x010802 && bar) {
            say("nvme=");
            say_hex(((volatile u32 *)bar)[2], 8);
        }
        say("\n");
    }
    say("end\n");
    port_out8(0xf4, 16);
    for (;;) __asm__ volatile("hlt");
}

__asm__(".globl _start\n_start: mov $0x80000, %esp\n call begin\n");
