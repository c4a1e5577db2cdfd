/* A program that no preloaded library can reach, once it is linked statically. */
int main(void)
{
	return 0;
}
