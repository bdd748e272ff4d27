# libcalabash-page.so, the agent's atomic operations on the control pages.
PAGELIB := $(OUT)/lib/libcalabash-page.so
TARGETS += $(PAGELIB)

$(PAGELIB): $(ROOT)/native/page/pagelib.c $(wildcard $(ROOT)/native/page/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -Wl,-soname,libcalabash-page.so $< -o $@.new
	@mv -f $@.new $@
